"""The choice of K as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.report.plots import written
from fedfew.report.tables import empty

if TYPE_CHECKING:
    from rich.table import Table

    from fedfew.evaluation.choosing_k import Advice

BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#222222", "#8c8c8c"


def table(advice: Advice, title: str) -> Table:
    """It fits 80 columns."""
    d = advice.decision
    caption = (
        "Per number of models in use: the best run that uses so many, on samples held out from the clients' training data. "
        "worse: than the best of all, ± its standard error (paired by client). MB up: of one client in one round with that K."
    )
    score = f"{advice.task.score}, %"
    columns = ("models\nin use", "loss", "worse ± SE", score, "trained with", "runs", "MB up")
    shown = empty(title, *columns, caption=caption)
    for at, (count, run) in enumerate(zip(d.counts, d.runs, strict=True)):
        cells = [f"{d.mean[at]:.3f}", f"{d.worse[at]:.3f} ± {d.error[at]:.3f}", f"{100 * np.nanmean(run.score):.1f}"]
        cells += [f"K = {run.models}, seed {run.seed}", str(advice.using(count))]
        cost = advice.costs.get(count)
        cells.append("–" if cost is None else f"{cost.bytes_up / 1e6:.3g}")
        shown.add_row(f"[bold]{count}\u00a0←[/bold]" if d.chosen == count else str(count), *cells)
    return shown


def draw(advice: Advice, path: Path, title: str) -> Path:
    """Left: what was measured, and the choice. Right: how much clients differ, and what the theorem makes of it."""
    with written(path, width=10.2, height=4.4) as figure:
        left, right = figure.subplots(1, 2)
        _measured(left, advice)
        _theory(right, advice)
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return path


def _measured(axis: Any, advice: Advice) -> None:
    d = advice.decision
    for run in advice.runs:
        axis.plot(run.in_use, run.validation.mean(), marker="o", ms=4, mfc="none", mec=GREY, ls="")
    axis.plot([], [], marker="o", ms=4, mfc="none", mec=GREY, ls="", label="one run")
    best = {"color": BLUE, "marker": "s", "ms": 5, "lw": 1.6, "capsize": 3}
    axis.errorbar(d.counts, d.mean, yerr=d.error, label="best run ± SE of what it is worse by", **best)
    at = d.counts.index(d.chosen)
    axis.axvline(d.chosen, color=ORANGE, lw=6, alpha=0.25, zorder=0)
    where = (d.chosen, d.mean[at])
    axis.annotate(f"K = {d.chosen}", where, xytext=(8, 14), textcoords="offset points", color=ORANGE, weight="bold")
    axis.axhline(float(advice.regret.own.mean()), color=BLACK, lw=1, ls=":", label="every client alone")
    axis.set_xticks(d.counts)
    axis.set(xlabel="models in use", ylabel="validation loss, mean over clients", title="Measured")
    axis.legend(loc="best", fontsize=8)


def _theory(axis: Any, advice: Advice) -> None:
    ks = np.array(advice.ks)
    printed = (1 - ks / advice.clients) * advice.regret.largest
    coverage = np.array([advice.coverage(K) for K in advice.ks])
    axis.plot(ks, printed, color=GREY, lw=1, ls=":", label="(1 − K/M)·Δ_het, the maximum over pairs")
    axis.plot(ks, coverage, color=BLUE, lw=1.4, ls="--", label="(1 − K/M)·mean over pairs")
    axis.set_xticks(ks)
    axis.set_ylim(bottom=0)
    axis.set(xlabel="K", ylabel="loss above each client's own optimum", title="The theorem's bound on it (Δ is measured)")
    axis.legend(loc="best", fontsize=8)
