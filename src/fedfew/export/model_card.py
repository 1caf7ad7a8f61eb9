"""The model card of an export, for people: ``README.md`` from what ``card.json`` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text(card: Mapping[str, Any]) -> str:
    """The page."""
    count = len(card["models"])
    sections = [
        f"# {count} {'model' if count == 1 else 'models'} trained by {card['method']['name']} on {card['data']['name']}",
        _introduction(card),
        "## Models\n" + _models(card),
        "## Scores\n" + _scores(card),
        "## Data\n" + _data(card),
        "## Settings\n" + _settings(card),
        "## Use\n" + _use(card),
        "## Versions\n" + _versions(card),
    ]
    return "\n\n".join(sections) + "\n"


def _introduction(card: Mapping[str, Any]) -> str:
    clients, planned = card["data"]["clients"], card["training"].get("rounds")
    stopped = f" of {planned} planned" if planned not in (None, card["training"]["round"]) else ""
    return (
        f"Trained together by {clients} clients in {card['training']['round']} rounds{stopped}, without their data leaving them. "
        "A client uses the one model that fits its own data best. This folder holds parameters, settings and scores, no samples."
    )


def _models(card: Mapping[str, Any]) -> str:
    rows = [
        f"| {k} | {'–' if row['clients'] is None else row['clients']} | `{row['file']}` | `{row['sha256']}` |"
        for k, row in enumerate(card["models"])
    ]
    return "\n".join(["| model | clients that use it | file | SHA-256 |", "|---|---|---|---|", *rows])


def _scores(card: Mapping[str, Any]) -> str:
    scores = card["scores"]
    if not scores:
        return "None: training was stopped before any were taken."
    rows = ["| score | mean ± std over clients | worst client | best client | clients |", "|---|---|---|---|---|"]
    for name in ("served", "adapted"):
        if (s := scores[name]) is not None:
            rows.append(f"| {name} | {s['mean']:.1%} ± {100 * s['std']:.1f} | {s['min']:.1%} | {s['max']:.1%} | {s['clients']} |")
    of_whom = (
        "served: the model as it is here. adapted: after a client's own local training, which is not part of this folder."
        if card["scores_are_of_these_models"]
        else f"Clients of {card['method']['name']} use models of their own, which stay with them: the scores are of those, not "
        "of the models here."
    )
    return (
        f"Accuracy on the clients' own test samples after round {scores['round']}. {of_whom}{_as_served(card)} "
        "A new client's score may differ: measure it on its own data before use.\n\n" + "\n".join(rows)
    )


def _as_served(card: Mapping[str, Any]) -> str:
    """What a client does with the models before it predicts, which the scores include."""
    text = ""
    if card["training"].get("label_prior") == "client":
        text += (
            " The models were trained with label priors: their logits say how well the input fits each class, and a client adds "
            "the log of its own label frequencies (`fedfew.models.served.ServedModel([model], log_prior=...)`)."
        )
    if card["training"].get("serve") == "mixture":
        text += (
            " The scores are of a mixture of all models, weighted per client by exp(-loss / "
            f"{card['training']['temperature']:g}) with the loss on its own data (`ServedModel(models, weights)`)."
        )
    return text


def _data(card: Mapping[str, Any]) -> str:
    data, model = card["data"], card["model"]
    lines = [f"- {data['clients']} clients, data `{data['name']}`, {model['classes']} classes"]
    for side in ("train", "test"):
        if (counts := data[f"{side}_samples"]) is not None:
            least, most = counts["smallest"], counts["largest"]
            lines.append(
                f"- {side} samples: {counts['total']} in all, {least if least == most else f'{least} to {most}'} a client"
            )
    lines.append(f"- a sample has shape {model['shape']}{_stored(model)}")
    return "\n".join(lines)


def _stored(model: Mapping[str, Any]) -> str:
    stored = "" if model["dtype"] is None else f" and was stored as {model['dtype']}"
    pixels = "(x/255 − 0.5)/0.5" if model["pixels"] == "symmetric" else "x/255"
    return f"{stored}; bytes (uint8) become {pixels} on their way into the model, all else goes in as it is"


def _settings(card: Mapping[str, Any]) -> str:
    values = {f"method: {name}": value for name, value in card["method"].items()} | card["training"]
    rows = [f"| {name} | {value} |" for name, value in values.items() if value is not None]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _use(card: Mapping[str, Any]) -> str:
    model = card["model"]
    own = ":" in model["name"]
    argument = ", model=your_factory" if own else ""
    module = f"`{model['name']}`, a module of the authors' own" if own else f"fedfew's `{model['name']}`"
    return f"""The module is {module} ({card["parameters"]:,} parameters). To find the model that fits your data, offline:
```
fedfew select THIS_FOLDER --data mine.npz --adapt-epochs 3 -o model.safetensors
```
`mine.npz` holds the arrays `x` (samples) and `y` (labels). In Python:
```python
import fedfew

module = fedfew.load_model("models/model-0.safetensors"{argument})
```
or without fedfew, as a plain state dict:
```python
from safetensors.torch import load_file

module.load_state_dict(load_file("models/model-0.safetensors"))
```
`card.json` holds the SHA-256 of every other file; `fedfew select` checks them. That finds damage. Against somebody who alters
the card as well, compare its own SHA-256 with one that reached you by another way."""


def _versions(card: Mapping[str, Any]) -> str:
    rows = [f"| {when} | {v['fedfew']} | {v['torch']} |" for when, v in card["versions"].items()]
    return "\n".join(["| | fedfew | torch |", "|---|---|---|", *rows])
