"""A run as one JSON document: all that its page shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfew._version import __version__
from fedfew.evaluation.metrics import summarise
from fedfew.report import SCORES
from fedfew.report.page import classes, pack, series
from fedfew.report.page.binning import Rows, arranged, thinned
from fedfew.report.page.record import Record, SideFiles
from fedfew.report.page.reproduction import how_to_repeat
from fedfew.tasks import outputs_in_words, recorded_task
from fedfew.util.printable import printable

EVENTS = 200  # the newest so many are listed


def of_run(record: Record, files: SideFiles | None = None) -> dict[str, Any]:
    """The document of a run, finished or not."""
    files = files or SideFiles()
    settings = record.settings
    method = dict(settings["method"])
    document: dict[str, Any] = {
        "kind": "run",
        "title": f"{method['name']} on {settings['federation']['name']}",
        "run": _about(record, files),
        "settings": _privacy(record) + _settings(settings),
        "reproduction": how_to_repeat(record, files),
        "events": {"all": len(record.events), "newest": record.events[-EVENTS:]},
        "costs": {name: series.short(float(value)) for name, value in files.costs.items()},
        "made": {"fedfew": __version__},
    }
    return document | _scores(record, files) if record.scored else document


def _about(record: Record, files: SideFiles) -> dict[str, Any]:
    settings = record.settings
    data = settings["federation"]
    return {
        "folder": files.name,
        "method": settings["method"]["name"],
        "data": data["name"],
        "clients": data["clients"],
        "classes": data["classes"],
        "what": outputs_in_words(settings),
        "score": recorded_task(settings).score,
        "model": settings["model"],
        "round": record.round,
        "rounds": settings["rounds"],
        "scored": record.scored,
        "checkpoint_every": files.config.get("checkpoint_every"),
        "sites": record.sites,
    }


def _scores(record: Record, files: SideFiles) -> dict[str, Any]:
    choice, served = record.row("choice", record.in_use), series.scores(record, "served", record.in_use)
    models = _models(record)
    names, groups = _groups(files, len(choice))
    rows = arranged(choice, groups, served)
    at = thinned(record.scored, len(rows), models)
    test = record.settings["federation"].get("test_samples")
    weigh = test if test and len(test) == len(choice) and min(test) > 0 else None
    curves = series.curves(record, at)
    document: dict[str, Any] = {
        "rounds": [int(record.row("round", position)) for position in at.tolist()],
        "in_use": int(record.row("round", record.in_use)),
        "scores": {
            score: series.summary_values(summarise(series.scores(record, score, record.in_use), weigh))
            for score in (*SCORES, *(["single"] if _mixed(record) else []))
        },
        "final": {
            name: series.summary_values(
                summarise(np.array(files.final[name], dtype=float), higher_is_better=name in series.FINAL)
            )
            for name in (*series.FINAL, *series.FINAL_ERRORS)
            if name in files.final
        },
        "curves": curves,
        "models": models,
        "groups": names,
        "names": [printable(name) for name in record.data.client_names],
        "clients": series.clients(record, files.about, files.final, groups),
        "rows": {"binned": rows.binned, "of": pack.whole(rows.of), "size": rows.size.tolist(), "order": rows.order.tolist()},
        "maps": series.maps(record, at, rows, models),
        "seconds": series.short(float(np.mean(curves["seconds"])) * record.round) if "seconds" in curves else None,
        "absent": _absent(record, files, models),
        "words": _words(record),
    }
    if models > 1:
        of_clients, of_rounds = series.switches(record, at)
        document["curves"]["switches"], document["clients"]["switches"] = of_rounds.tolist(), pack.whole(of_clients)
    return document | _classes(record, files, rows)


def _classes(record: Record, files: SideFiles, rows: Rows) -> dict[str, Any]:
    """Which classes are taken for which, and who has which labels, as far as this was counted."""
    names = [printable(name) for name in record.data.class_names]
    found = {}
    if files.confusion is not None and files.confusion.clients == len(rows.of):
        found["confusion"] = classes.confusion(files.confusion, names or [str(i) for i in range(files.confusion.classes)])
    if files.labels is not None:
        listed = names or [printable(name) for name in files.about.get("class_names", ())]
        found["labels"] = classes.distribution(files.labels, listed, rows)
    return found


def _models(record: Record) -> int:
    """How many models the clients choose among."""
    seen = int(max(record.row("choice", position).max() for position in {0, record.scored - 1})) + 1
    own = record.settings["method"].get("models", 1)
    of_w = record.row("w", 0).shape[-1] if "w" in record.columns else 1
    return max(seen, of_w, own if isinstance(own, int) else 1)


def _groups(files: SideFiles, clients: int) -> tuple[list[str], NDArray[np.int64]]:
    """The names of the true groups, and each client's position among them (−1: not known)."""
    given = files.about.get("groups")
    if given is None or len(given) != clients:
        return [], np.full(clients, -1)
    found = sorted(set(given), key=lambda group: (isinstance(group, str), group))
    where = {group: position for position, group in enumerate(found)}
    return [str(group) for group in found], np.array([where[group] for group in given])


def _absent(record: Record, files: SideFiles, models: int) -> dict[str, str]:
    """Why a section has nothing to show."""
    method, words = record.settings["method"]["name"], _words(record)
    why: dict[str, str] = {}
    if models == 1:
        served = f" Served: {words['served']}." if words else ""
        why["choice"] = f"With {method} a client has nothing to choose.{served}"
    elif record.sites and not (record.row("choice", record.in_use) >= 0).any():
        why["choice"] = "Which models clients use is not known: the sites keep it to themselves."
    if not {"alpha", "w"} <= record.columns:
        why["weights"] = f"{method} keeps no weights α and w: they are FedFew's, which weighs clients and models by their losses."
    if files.labels is None and recorded_task(record.settings).name == "regression":
        why["labels"] = "The targets are numbers: there are no labels to count."
    elif files.labels is None and recorded_task(record.settings).name == "language-modelling":
        why["labels"] = "The targets are the texts' own tokens: there are no labels to count."
    elif files.labels is None:
        why["labels"] = (
            "The run was made by sites that keep their labels to themselves."
            if record.sites
            else "The run's folder holds no label counts: it was saved from Python."
        )
    if files.confusion is None:
        why["classes"] = (
            "Predictions per class were not counted: they are when 'fedfew run' has ended."
            if recorded_task(record.settings).name == "classification"
            else "The targets are not classes."
        )
    if not files.costs:
        why["costs"] = "What a round costs was not counted for this run; traffic and seconds are those measured."
    return why


def _words(record: Record) -> dict[str, str]:
    """What the two scores are, in the method's own words."""
    words = _served_and_adapted(record)
    if record.in_use < record.scored - 1:
        kept = f" (of round {int(record.row('round', record.in_use))}, the best on validation data, which is kept)"
        words = {score: text + kept for score, text in words.items()}
    return words


def _mixed(record: Record) -> bool:
    """Is a client served a mixture of several models?"""
    return "mixture" in record.columns and record.row("mixture", record.scored - 1).shape[1] > 1


def _served_and_adapted(record: Record) -> dict[str, str]:
    from fedfew.methods import METHODS, Method

    method = METHODS.get(record.settings["method"]["name"])
    by_losses = method is not None and method.mixture is Method.mixture
    if by_losses and _mixed(record):
        weights = f"weighted per client by its losses (temperature {record.settings['temperature']:g})"
        return {
            "served": f"a mixture of all models that the server offers a client, {weights}",
            "adapted": f"a mixture of all models that the client has trained, {weights}",
        }
    return {} if method is None else {score: getattr(method, score) for score in SCORES}


def _privacy(record: Record) -> list[dict[str, Any]]:
    """ε by round, of a run with differential privacy; as the first group of settings."""
    if not record.scored or "epsilon" not in record.columns:
        return []
    at = sorted({*range(0, record.scored, -(-record.scored // 10)), record.scored - 1})  # ten rounds or so, and the last
    rows = [[f"ε after round {int(record.row('round', i))}", f"{float(record.row('epsilon', i)):.3g}"] for i in at]
    return [{"title": f"Differential privacy (δ = {record.settings['dp_delta']:g})", "rows": rows}]


def _settings(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All settings, in groups, as text."""
    data = {name: value for name, value in settings["federation"].items() if name != "test_samples"}
    method = dict(settings["method"])
    where = ("engine", "precision", "chunk", "score_every", "fedfew", "torch")
    plain = {name: value for name, value in settings.items() if name not in ("federation", "method")}
    parts = {
        "Data": data,
        f"Method: {method.pop('name')}": method,
        "Training": {name: value for name, value in plain.items() if name not in where},
        "Where and how": {name: plain[name] for name in where if name in plain},
    }
    return [{"title": title, "rows": [[name, _as_text(value)] for name, value in part.items()]} for title, part in parts.items()]


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "–" if value is None else " × ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 300 else text[:297] + "…"
