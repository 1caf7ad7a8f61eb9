"""The choice of K as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.report.plots import LOOK, check_name
from fedfew.report.tables import empty

if TYPE_CHECKING:
    from rich.table import Table

    from fedfew.evaluation.choosing_k import Advice

BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#222222", "#8c8c8c"


def table(advice: Advice, title: str) -> Table:
    d = advice.decision
    caption = (
        "Of the model each client is served, on samples held out from its training data. worse: than the best, ± its standard "
        "error (paired by client and seed). Costs: of one client in one round."
    )
    shown = empty(title, "K", "loss", "worse ± SE", "accuracy, %", "in use", "MB up", "MB down", "steps", caption=caption)
    for at, K in enumerate(d.ks):
        cost = advice.costs[K]
        cells = [f"{d.mean[at]:.4f}", f"{d.worse[at]:.4f} ± {d.error[at]:.4f}", f"{100 * advice.accuracy(K):.1f}"]
        cells += [f"{advice.in_use(K):.3g}", f"{cost.bytes_up / 1e6:.3g}", f"{cost.bytes_down / 1e6:.3g}", f"{cost.steps:.4g}"]
        shown.add_row(f"[bold]{K}\u00a0←[/bold]" if d.chosen == K else str(K), *cells)
    return shown


def draw(advice: Advice, path: Path, title: str) -> Path:
    """Left: what was measured, and the choice. Right: the theorem's two terms beside it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    check_name(path)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(10.2, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _measured(left, advice)
        _theory(right, advice)
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _measured(axis: Any, advice: Advice) -> None:
    d = advice.decision
    for run in advice.runs:
        axis.plot(run.models, run.validation.mean(), marker="o", ms=4, mfc="none", mec=GREY, ls="")
    axis.plot([], [], marker="o", ms=4, mfc="none", mec=GREY, ls="", label="one seed")
    axis.errorbar(
        d.ks,
        d.mean,
        yerr=d.error,
        color=BLUE,
        marker="s",
        ms=5,
        lw=1.6,
        capsize=3,
        label="mean ± SE of what it is worse by",
    )
    at = d.ks.index(d.chosen)
    axis.axvline(d.chosen, color=ORANGE, lw=6, alpha=0.25, zorder=0)
    axis.annotate(
        f"K = {d.chosen}", (d.chosen, d.mean[at]), xytext=(8, 14), textcoords="offset points", color=ORANGE, weight="bold"
    )
    axis.axhline(float(advice.regret.own.mean()), color=BLACK, lw=1, ls=":", label="every client alone")
    axis.set_xticks(d.ks, [f"{K}\n{advice.in_use(K):.3g}" for K in d.ks])
    axis.set(xlabel="K, and below it how many models are in use", ylabel="validation loss, mean over clients", title="Measured")
    axis.legend(loc="best", fontsize=8)


def _theory(axis: Any, advice: Advice) -> None:
    ks = np.array(advice.decision.ks)
    coverage = np.array([advice.coverage(K) for K in ks])
    statistical = np.array([advice.statistical(K) for K in ks])
    printed = (1 - ks / advice.clients) * advice.regret.largest
    axis.plot(ks, printed, color=GREY, lw=1, ls=":", label="(1 − K/M)·Δ_het, the maximum over pairs")
    axis.plot(ks, coverage + statistical, color=BLACK, lw=1.6, label="coverage + statistical")
    axis.plot(ks, coverage, color=BLUE, lw=1.4, ls="--", label="coverage: (1 − K/M)·mean over pairs (measured)")
    axis.plot(ks, statistical, color=ORANGE, lw=1.4, ls="-.", label="statistical: s·√K (fitted to ×)")
    axis.plot(ks, list(advice.gaps.values()), color=ORANGE, marker="x", ls="", label="validation − training loss (measured)")
    axis.set_xticks(ks)
    axis.set_yscale("symlog", linthresh=0.1)  # the gap can be negative
    axis.set_ylim(bottom=min(0.0, 1.1 * min(advice.gaps.values())))
    axis.set(xlabel="K", ylabel="loss above each client's own optimum", title="The theorem's bound on it")
    axis.legend(loc="best", fontsize=8)
