"""Results of a run, or of several with different seeds: as plain values (here), tables, plots and an HTML page.

Imports training, evaluation, export and all below them; studies, tracking, bench and cli import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.evaluation.metrics import Summary, last_and_best, summarise, weight_diagnostics
from fedfew.evaluation.over_clients import mean_of, std_of
from fedfew.tasks import recorded_task

if TYPE_CHECKING:
    from fedfew.training.history import History
    from fedfew.training.run import Run

SCORES = ("served", "adapted")


@dataclass(frozen=True)
class AcrossSeeds:
    """One score of one method, run with several seeds: means over seeds, and two kinds of spread."""

    mean: float
    std_over_seeds: float  # sample standard deviation of the seeds' means; NaN for a single seed
    std_over_clients: float  # population standard deviation over clients, mean over seeds
    worst: float  # the worst client's score, mean over seeds

    @classmethod
    def of(cls, seeds: Sequence[Summary]) -> AcrossSeeds:
        means = np.array([summary.mean for summary in seeds])
        return cls(
            mean=mean_of(means),
            std_over_seeds=std_of(means, less=1) if len(means) > 1 else float("nan"),
            std_over_clients=float(np.mean([summary.std for summary in seeds])),
            worst=mean_of(np.array([summary.min for summary in seeds])),
        )


def last_scores(run: Run) -> dict[str, Summary]:
    """Served and adapted scores (the task's: accuracy, R², …) over clients, in the round whose models are used: the last scored
    one, or the best kept."""
    samples = run.settings["federation"]["test_samples"]
    return {score: summarise(run.scores(score), samples) for score in SCORES}


def single_scores(run: Run) -> Summary | None:
    """The scores of each client's best model alone, where it is served a mixture; None where it is not."""
    if run.history.score_column("single") not in run.history.columns or run.scored("mixture").shape[1] == 1:
        return None
    return summarise(run.scores("single"), run.settings["federation"]["test_samples"])


def score_name(run: Run) -> str:
    """What the run's scores are: accuracy, R², …"""
    return recorded_task(run.settings).score


def score_values(run: Run) -> dict[str, dict[str, Any]]:
    """The same as plain values."""
    return {score: asdict(summary) for score, summary in last_scores(run).items()}


def across_seeds(runs: Sequence[Run]) -> dict[str, AcrossSeeds]:
    """Both scores of one method's runs."""
    seeds = [last_scores(run) for run in runs]
    return {score: AcrossSeeds.of([summaries[score] for summaries in seeds]) for score in SCORES}


def weights_at(history: History, at: int = -1) -> dict[str, float]:
    """The weight diagnostics of a scored round (the last one), those that the method has and that are known."""
    series = asdict(weight_diagnostics(history))
    found = {name: float(values[at]) for name, values in series.items() if values is not None and name != "round"}
    return {name: value for name, value in found.items() if name != "models_in_use" or value}  # 0: sites keep it to themselves


def seconds(run: Run) -> float:
    """Seconds of training, all rounds (scoring not counted)."""
    return float(run.history.seconds.mean()) * run.round


def mean_curve(history: History, score: str) -> Any:
    """The mean over clients in every scored round, [S]."""
    return np.array([summarise(row).mean for row in history.scores(score)])


def html(run: Run | str | Path) -> str:
    """One self-contained HTML page about a run, as text. run: a run, or the folder of one."""
    from fedfew.report.page.document import of_run
    from fedfew.report.page.html import page
    from fedfew.report.page.of_folder import of_folder
    from fedfew.report.page.record import InMemory, SideFiles

    if isinstance(run, str | Path):
        return page(of_folder(Path(run)))
    counted = len(run.history) > 0 and run.federation is not None and run.task.name == "classification"
    return page(of_run(InMemory(run.state), SideFiles(confusion=run.confusions() if counted else None)))


def describe(run: Run) -> dict[str, Any]:
    """A run as plain values, ready for JSON."""
    about: dict[str, Any] = {"settings": run.settings, "round": run.round, "round_in_use": run.round_in_use}
    about["events"] = run.state.events
    if not len(run.history):  # stopped in its first round
        return about
    history = run.history
    rows = zip(run.scored("choice").tolist(), *(run.scores(score).tolist() for score in SCORES), strict=True)
    return about | {
        "score": score_name(run),
        "scores": score_values(run),
        "mixture": _mixture(run),
        "last_and_best": asdict(last_and_best(history)),
        "weights": weights_at(history, run.scored_at),
        "seconds": seconds(run),
        "clients": [
            {"client": i, "name": run.data.client_name(i), "model": model, "served": float(served), "adapted": float(adapted)}
            for i, (model, served, adapted) in enumerate(rows)
        ],
        "curve": {"round": history.round.tolist()} | {score: mean_curve(history, score).tolist() for score in SCORES},
    }


def _mixture(run: Run) -> dict[str, Any] | None:
    """Of a run that serves mixtures: how many models a prediction runs, and the scores of the best of them alone."""
    single = single_scores(run)
    return None if single is None else {"models": int(run.scored("mixture").shape[1]), "single": asdict(single)}


def same_grouping(groups: Any, choice: Any) -> bool:
    """Whether two groupings of the clients are equal, up to the names of the groups."""
    pairs = set(zip(np.asarray(groups).tolist(), np.asarray(choice).tolist(), strict=True))
    return len(pairs) == len({group for group, _ in pairs}) == len({model for _, model in pairs})
