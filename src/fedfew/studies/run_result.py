"""The stored result of a finished run: one row for the run, one per client, one per scored round. Missing numbers are None."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.studies.measures import SCORES

if TYPE_CHECKING:
    from fedfew.evaluation.costs import Cost
    from fedfew.evaluation.metrics import LanguageScores, MultiLabelScores, RegressionScores, Scores
    from fedfew.federation import Federation
    from fedfew.training.run import Run
    from fedfew.training.settings import Settings

OVER_CLIENTS = ("mean", "std", "min", "max", "worst_tenth", "jain", "weighted_mean")


def run_result(
    run: Run, federation: Federation, settings: Settings, cost: Cost | None, about: dict[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """All three, as plain values. about: from the runner (code, started, seconds)."""
    from fedfew.evaluation.metrics import evaluate

    scores = _classes(evaluate(run, federation))
    rounds = _rounds(run)
    return {
        "run": _run(run, federation, settings, cost, scores, _in_use(run, rounds), notes) | about,
        "clients": _clients(run, federation, scores),
        "rounds": rounds,
    }


def _in_use(run: Run, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of the round whose models are used; where that was not scored, the last."""
    return next((row for row in rounds if row["round"] == run.round_in_use), rounds[-1])


def _run(
    run: Run,
    federation: Federation,
    settings: Settings,
    cost: Cost | None,
    scores: dict[str, Any],
    last: dict[str, Any],
    notes: Sequence[str],
) -> dict[str, Any]:
    from fedfew.report import last_scores
    from fedfew.training.round_events import ONCE

    of_all_clients = [event for event in run.state.events if not event.endswith(ONCE)]
    summaries = last_scores(run)
    if any(math.isinf(summary.mean) for summary in summaries.values()):
        raise ValueError("the scores of some clients are infinite: training diverged. Lower lr, or standardise the targets")
    over_clients = {f"{s}_{name}": _number(getattr(summaries[s], name)) for s in SCORES for name in OVER_CLIENTS}
    return {
        "dataset": settings.dataset,
        "partition": federation.about.get("partition", settings.partition),
        "clients": len(federation),
        "model": settings.model,
        "method": settings.method,
        "models": getattr(run.method, "models", None),
        "mu": getattr(run.method, "mu", None),
        "rounds": run.round,
        "local_epochs": settings.local_epochs,
        "batch_size": settings.batch_size,
        "lr": settings.lr,
        "settings": json.dumps(settings.as_config() | {"method": run.method.settings() | {"name": settings.method}}),
        "fedfew": run.settings["fedfew"],
        "torch": run.settings["torch"],
        "python": platform.python_version(),
        "host": platform.node(),
        "engine": run.settings["engine"],
        "precision": settings.precision,
        "seconds_per_round": _number(run.history.seconds.mean()),
        "score": run.task.score,
        **over_clients,
        **_single(run),
        "macro_f1": _mean(scores["macro_f1"]),
        "auc": _mean(scores["auc"]),
        **{name: last[name] for name in ("g", "entropy", "largest", "alpha_cv", "models_in_use", "bytes_up", "bytes_down")},
        "cost": None if cost is None else json.dumps(asdict(cost)),
        "notes": "; ".join([*notes, *of_all_clients]) or None,
    }


def _classes(scores: Scores | RegressionScores | MultiLabelScores | LanguageScores) -> dict[str, Any]:
    """Macro-F1 and AUC of each client, where the task has them."""
    missing = np.full(len(scores.samples), np.nan)
    return {name: getattr(scores, name, missing) for name in ("macro_f1", "auc")}


def _single(run: Run) -> dict[str, float | None]:
    """The score of each client's best single model, where it is served a mixture."""
    from fedfew.evaluation.metrics import summarise

    if run.history.score_column("single") not in run.history.columns:
        return {"single_mean": None, "single_min": None}
    single = summarise(run.scores("single"))
    return {"single_mean": _number(single.mean), "single_min": _number(single.min)}


def _clients(run: Run, federation: Federation, scores: dict[str, Any]) -> list[dict[str, Any]]:
    history = run.history
    columns: dict[str, Any] = {f"{s}_score": run.scores(s) for s in SCORES}
    columns |= {f"{s}_loss": run.scored(f"{s}_loss") for s in SCORES}
    columns |= scores
    if "alpha" in history.columns:
        columns["alpha"] = run.scored("alpha")
    w = run.scored("w") if "w" in history.columns else None
    groups = None if federation.groups is None else federation.groups.tolist()
    train, test, choice = federation.train.count.tolist(), federation.test.count.tolist(), run.choice.tolist()
    return [
        {
            "client": i,
            "train": train[i],
            "test": test[i],
            "group": None if groups is None else groups[i],
            "choice": choice[i],
            "alpha": None,
            **{name: _number(values[i]) for name, values in columns.items()},
            "w": None if w is None or np.isnan(w[i]).any() else [float(value) for value in w[i]],
        }
        for i in range(len(federation))
    ]


def _rounds(run: Run) -> list[dict[str, Any]]:
    from fedfew.evaluation.metrics import summarise, weight_diagnostics

    history, samples = run.history, run.settings["federation"]["test_samples"]
    weights = asdict(weight_diagnostics(history))
    accuracies = {score: history.scores(score) for score in SCORES}
    real: dict[str, Any] = {name: weights[name] for name in ("entropy", "largest", "alpha_cv")}
    real |= {"g": history["g"] if "g" in history.columns else None, "seconds": history["seconds"]}
    whole = {name: history[name] for name in ("round", "bytes_up", "bytes_down")} | {"models_in_use": weights["models_in_use"]}
    rows = []
    for s in range(len(history)):
        over = {score: summarise(values[s], samples) for score, values in accuracies.items()}
        row: dict[str, Any] = {name: int(values[s]) for name, values in whole.items()}
        row |= {name: None if values is None else _number(values[s]) for name, values in real.items()}
        for name, field in (("mean", "mean"), ("min", "min"), ("weighted", "weighted_mean")):
            row |= {f"{score}_{name}": _number(getattr(over[score], field)) for score in SCORES}
        rows.append(row)
    return rows


def mean_served(run: Run) -> tuple[float | None, float | None]:
    """Score and loss of the served models on the samples that the run was scored on, mean over clients."""
    return _mean(run.scores("served")), _mean(run.scored("served_loss"))


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _mean(values: Any) -> float | None:
    known = [v for v in np.asarray(values, dtype=float) if not math.isnan(v)]
    return _number(np.mean(known)) if known else None
