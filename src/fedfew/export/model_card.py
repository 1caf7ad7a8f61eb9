"""The model card of an export, for people: ``README.md`` from what ``card.json`` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedfew.export import adapter_card
from fedfew.methods import METHODS, Method
from fedfew.tasks import outputs_in_words, recorded_task
from fedfew.util.printable import for_markdown, shortened
from fedfew.util.spelling import counted

LISTED = 10  # names of clients per model
PREDICTED = {  # what predict gives
    "classification": "the labels; predict_proba gives probabilities of classes",
    "regression": "the numbers",
    "multi-label": "0 or 1 for each label; predict_proba gives probabilities",
}
OF_SINGLE_CLIENTS = {
    "choice": "the model each uses",
    "mixture": "the weights of its mixture",
    "log_prior": "its label frequencies",
    "names": "its name",
    "means and standard deviations": "means and standard deviations of its columns",
}


def text(card: Mapping[str, Any]) -> str:
    """The page."""
    count, data = len(card["models"]), for_markdown(card["data"]["name"])
    sections = [
        f"# {count} {'model' if count == 1 else 'models'} trained by {card['method']['name']} on {data}",
        _introduction(card),
        "## Models\n" + _models(card),
        "## Scores\n" + _scores(card),
        *_privacy(card),
        "## Data\n" + _data(card),
        "## Settings\n" + _settings(card),
        "## Use\n" + _use(card),
        "## Versions\n" + _versions(card),
    ]
    return "\n\n".join(sections) + "\n"


def _introduction(card: Mapping[str, Any]) -> str:
    clients, planned = card["data"]["clients"], card["training"].get("rounds")
    stopped = f" of {planned} planned" if planned not in (None, card["training"]["round"]) else ""
    rounds = counted(card["training"]["round"], "round")
    return (
        f"Trained together by {counted(clients, 'client')} in {rounds}{stopped}, without their data leaving them. "
        f"{_who_uses_what(card)} This folder holds parameters, settings and scores, no samples."
        f"{_of_single_clients(card)}"
    )


def _who_uses_what(card: Mapping[str, Any]) -> str:
    if found := card.get("distilled"):
        return (
            "Each client has one model here, distilled from its mixture of the models trained "
            f"({counted(found['epochs'], 'epoch')} on its own training inputs, without labels)."
        )
    if card.get("personal"):
        return "Each client has the model that it uses here, in the order of the clients."
    if not card["scores_are_of_these_models"]:
        return _whose(card)
    if len(card["models"]) == 1:
        return "All clients use this model."
    if _overrides(card, "assigned"):
        return "A client uses the model of its cluster, which the server decided on."
    if _mixed(card):
        return "A client predicts with a mixture of them, weighted by how well they fit its own data."
    return "A client uses the one model that fits its own data best."


def _whose(card: Mapping[str, Any]) -> str:
    """Of scores that are not of the models here: whose they are."""
    if _overrides(card, "assigned"):
        return "Some clients are not assigned to one of these models yet: they use the initial model, which is not here."
    return f"Clients of {card['method']['name']} use models of their own, which stay with them and are not here."


def _mixed(card: Mapping[str, Any]) -> bool:
    """Do clients predict with a mixture of the models here?"""
    several = len(card["models"]) > 1 and card["scores_are_of_these_models"] and not _overrides(card, "assigned")
    return several and not card.get("personal") and (card["training"].get("serve") == "mixture" or _overrides(card, "mixture"))


def _overrides(card: Mapping[str, Any], what: str) -> bool:
    """mixture: does the method learn the weights of its mixture? assigned: does its server decide which model a client uses?"""
    known = METHODS.get(card["method"]["name"])
    return known is not None and getattr(known, what) is not getattr(Method, what)


def _of_single_clients(card: Mapping[str, Any]) -> str:
    found = [OF_SINGLE_CLIENTS.get(name, name) for name in card.get("of_single_clients", ())]
    return f" Of single clients it holds: {', '.join(found)}." if found else " It says nothing of single clients."


def _models(card: Mapping[str, Any]) -> str:
    scored = "distilled" in card
    scores = [f" {row['accuracy']:.1%} | {row['mixture_accuracy']:.1%} |" if scored else "" for row in card["models"]]
    rows = [f"| {k} | {_users(row)} |{scores[k]} `{row['file']}` | `{row['sha256']}` |" for k, row in enumerate(card["models"])]
    head = "| model | clients that use it |" + (" accuracy | of its mixture |" if scored else "") + " file | SHA-256 |"
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def _users(row: Mapping[str, Any]) -> str:
    if row["clients"] is None:
        return "–"
    names = [for_markdown(shortened(name)) for name in row.get("client_names", ())]
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{row['clients']}" + (f": {', '.join(names[:LISTED])}{more}" if names else "")


def _scores(card: Mapping[str, Any]) -> str:
    scores = card["scores"]
    if not scores:
        return "None: training was stopped before any were taken."
    if scores["served"] is None and scores["adapted"] is None:
        return "None: the sites keep theirs to themselves."
    rows = ["| score | mean ± std over clients | worst client | best client | clients |", "|---|---|---|---|---|"]
    for name in ("served", "adapted"):
        if (s := scores[name]) is not None:
            mean, worst, best = (_value(card, s[which]) for which in ("mean", "min", "max"))
            rows.append(f"| {name} | {mean} ± {_value(card, s['std']).rstrip('%')} | {worst} | {best} | {s['clients']} |")
    diverged = ["", "–: not a finite number, as where training diverges."] if any("| –" in row for row in rows) else []
    served = "the mixture of the models here" if _mixed(card) else "the model as it is here"
    if "distilled" in card:
        served = "the mixture that a model here is distilled from"
    of_whom = (
        f"served: {served}. adapted: after a client's own local training, which is not part of this folder."
        if card["scores_are_of_these_models"] or "distilled" in card
        else f"{_whose(card)} The scores are of what clients use, not of the models here."
    )
    return (
        f"{_score(card)} on the clients' own test samples after round {scores['round']}. {of_whom}{_as_served(card)} "
        "A new client's score may differ: measure it on its own data before use.\n\n" + "\n".join([*rows, *diverged])
    )


def _score(card: Mapping[str, Any]) -> str:
    name = recorded_task({"federation": card["model"]}).score
    return name[0].upper() + name[1:]


def _value(card: Mapping[str, Any], score: float | None) -> str:
    """Shares in per cent, R² and 1/perplexity as they are."""
    if score is None:
        return "–"
    if (task := card["model"]["task"]) == "language-modelling":
        return f"{score:.5f}"  # next to 0 with a large vocabulary
    return f"{score:.1%}" if task in ("classification", "multi-label") else f"{score:.3f}"


def _as_served(card: Mapping[str, Any]) -> str:
    """What a client does with the models before it predicts, which the scores include."""
    text = ""
    if card["training"].get("label_prior") == "client":
        text += (
            " The models were trained with label priors: their logits say how well the input fits each class, and a client adds "
            "the log of its own label frequencies (`model_of`, `for_new_client` and `with_prior` below do)."
        )
    if found := card.get("distilled"):
        text += (
            f" The models here are distilled from mixtures: their mean test accuracy is {found['accuracy']:.1%}, that of the "
            f"mixtures {found['mixture_accuracy']:.1%}; both predict the same class for {found['agreement']:.1%} of a client's "
            "test inputs."
        )
    elif _mixed(card):
        temperature = card["training"].get("temperature", 0.5)
        by_losses = f"exp(-loss / {temperature:g}) with the loss on its own data"
        by = "weights that it learned" if _overrides(card, "mixture") else by_losses
        text += f" The mixture is of all models, weighted per client by {by}."
    return text


def _privacy(card: Mapping[str, Any]) -> list[str]:
    """What differential privacy promises of the parameters, where they were trained with it."""
    found = card.get("privacy")
    if not found:
        return []
    return [
        f"## Privacy\nThe parameters of all models together are (ε = {found['epsilon']:.3g}, δ = {found['delta']:g}) "
        "differentially private for adding or removing one client, by Rényi differential privacy: a client's contribution was "
        f"shortened to norm {found['clip']:g}, noise of {found['noise']:g} times that was added, each client took part in a "
        f"round with probability {found['participation']:.3g}, and there were {found['rounds']} rounds. Scores, and anything of "
        "single clients, are not covered. In a simulation the noise follows from the seed: keep the seed secret."
    ]


def _data(card: Mapping[str, Any]) -> str:
    data, model = card["data"], card["model"]
    what = outputs_in_words({"federation": model})
    lines = [f"- {counted(data['clients'], 'client')}, data {for_markdown(data['name'])}, {what}{_named(model)}"]
    for side in ("train", "test"):
        if (counts := data[f"{side}_samples"]) is not None:
            least, most = counts["smallest"], counts["largest"]
            lines.append(
                f"- {side} samples: {counts['total']} in all, {least if least == most else f'{least} to {most}'} per client"
            )
    lines.append(f"- a sample has shape {model['shape']}{_stored(model)}")
    if found := data.get("tokenizer"):
        lines.append(
            f"- texts are encoded by the tokenizer {for_markdown(found['name'] or 'of Python')} (SHA-256 `{found['sha256']}`) "
            f"and truncated to {found['max_length']} tokens; `data.json` holds it, for `fedfew predict` and `fedfew select`"
        )
    return "\n".join(lines)


def _named(model: Mapping[str, Any]) -> str:
    names = [for_markdown(shortened(name)) for name in model.get("class_names", ())]
    return f": {', '.join(names[:20])}{', …' if len(names) > 20 else ''}" if names else ""


def _stored(model: Mapping[str, Any]) -> str:
    stored = "" if model["dtype"] is None else f" and was stored as {model['dtype']}"
    pixels = "(x/255 − 0.5)/0.5" if model["pixels"] == "symmetric" else "x/255"
    return f"{stored}; bytes (uint8) become {pixels} on their way into the model, all else goes in as it is"


def _settings(card: Mapping[str, Any]) -> str:
    values = {f"method: {name}": value for name, value in card["method"].items()} | card["training"]
    rows = [f"| {name} | {for_markdown(str(value))} |" for name, value in values.items() if value is not None]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _use(card: Mapping[str, Any]) -> str:
    model = card["model"]
    own = ":" in model["name"]
    module = f"{for_markdown(model['name'])}, a module of the authors' own" if own else f"fedfew's `{model['name']}`"
    return f"""The module is {module} ({card["parameters"]:,} parameters). On the command line, where `select`
finds the model that fits new data best, with scores:
```
{_commands(card)}
```
Data are given as in the training: a table, texts, images, or a `.npz` with the arrays `x` and `y`. In Python:
```python
{_python(card)}
```
{adapter_card.serving(card) if "adapters" in card else _plain_file(card)}
`card.json` holds the SHA-256 of every other file; `fedfew select` checks them. That finds damage. Against somebody who alters
the card as well, compare its own SHA-256 with one that reached you by another way."""


def _own_loss(card: Mapping[str, Any]) -> bool:
    """Were the models trained with a loss function of the authors' own? A new client's model is chosen by it."""
    return ":" in str(card["training"].get("loss", "auto"))


def _client(card: Mapping[str, Any]) -> str | None:
    """How a client of the training is named here; None where the models that clients use are not known here."""
    known = card.get("of_single_clients", ())
    return None if "choice" not in known else "NAME" if "names" in known else "0"


def _alone(card: Mapping[str, Any]) -> bool:
    """Is there one model here that all clients use as it is?"""
    prior = card["training"].get("label_prior", "none") != "none"
    return len(card["models"]) == 1 and card["scores_are_of_these_models"] and not prior


def _commands(card: Mapping[str, Any]) -> str:
    flags = " --model module:factory" if ":" in card["model"]["name"] else ""
    flags += " --loss module:function" if _own_loss(card) else ""
    lines = [f"fedfew select THIS_FOLDER --data mine.csv --adapt-epochs 3 -o model.safetensors{flags}"]
    if card["model"]["task"] != "language-modelling":
        predict, client = f"fedfew predict THIS_FOLDER --data new.csv -o predictions.csv{flags}", _client(card)
        lines.append(f"{predict} --labels mine.csv  # of a client that took no part")
        if client or _alone(card):
            lines.append(f"{predict}{f' --client {client}' if client else ''}")
    return "\n".join(reversed(lines))


def _python(card: Mapping[str, Any]) -> str:
    model, client = card["model"], _client(card)
    argument = ", model=your_factory" if ":" in model["name"] else ""
    loss = ", loss=your_loss" if _own_loss(card) else ""
    name = '"NAME"' if client == "NAME" else client
    lines = ["import fedfew", "", f'export = fedfew.export.read("THIS_FOLDER"{argument}{loss})']
    if model["task"] == "language-modelling":
        texts = "mine" if "tokenizer" in card["data"] else "mine, mine_with_padding_at_minus_100"
        lines.append(f"module = export.for_new_client({texts}).module  # of a client that took no part")
    else:
        if client or _alone(card):
            lines.append(f"export.predict(new{f', client={name}' if client else ''})  # {PREDICTED[model['task']]}")
        lines.append("export.for_new_client(mine, labels).predict(new)  # of a client that took no part")
    if client:
        lines.append(f"module = export.model_of({name})  # as it was scored")
    if "adapters" not in card:
        lines.append(f'module = fedfew.load_model("THIS_FOLDER/models/model-0.safetensors"{argument})  # one model as it is')
    if card["training"].get("label_prior") == "client":
        number = ", model=0" if len(card["models"]) > 1 else ""
        lines.append(f"module = export.with_prior(frequencies{number})  # of a client whose label frequencies you know")
    return "\n".join(lines)


def _plain_file(card: Mapping[str, Any]) -> str:
    if card["model"].get("adapters"):
        return """For use without fedfew, the adapters are merged into a plain module:
```python
from safetensors.torch import load_model, save_model

save_model(fedfew.adapters.merged(export.models[0]), "plain.safetensors")
load_model(your_module, "plain.safetensors")
```"""
    if built := card.get("in_torch"):
        return f"""Without fedfew, each file is a plain state dict of this module:
```python
from safetensors.torch import load_file
from torch import nn

module = {built}
module.load_state_dict(load_file("THIS_FOLDER/models/model-0.safetensors"))
```"""
    statistics = " with `track_running_stats=False` in its BatchNorm layers" if card["model"]["batch_norm"] == "batch" else ""
    return f"""Without fedfew, each file is a plain state dict of the module{statistics}:
```python
from safetensors.torch import load_file

your_module.load_state_dict(load_file("THIS_FOLDER/models/model-0.safetensors"))
```"""


def _versions(card: Mapping[str, Any]) -> str:
    rows = [f"| {when} | {v['fedfew']} | {v['torch']} |" for when, v in card["versions"].items()]
    return "\n".join(["| | fedfew | torch |", "|---|---|---|", *rows])
