"""Plots of runs. Nothing is shown by colour alone: lines differ in style, heat maps in lightness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.report import SCORES, AcrossSeeds, across_seeds, mean_curve, score_name
from fedfew.util.files import check_writable
from fedfew.util.printable import for_plot, shortened
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.training.history import History
    from fedfew.training.run import Run

# Okabe and Ito's colours, distinguishable for colour-blind readers, each with a line style of its own.
STYLES = [("#222222", ":"), ("#D55E00", "--"), ("#0072B2", "-")]  # local only, FedAvg, FedFew: the last is the one to look at
MARKERS = {
    "served": ("o", "#0072B2", "#0072B2", 0.11),
    "adapted": ("D", "#D55E00", "white", -0.11),
}  # shape, colour, fill, height
ABSENT = "#c8c8c8"  # in a heat map: the client did not take part in the round
MEANING = {"served": "as the server sends it", "adapted": "after the round's local training"}
MOST_NAMES = 40  # of clients beside a heat map
SUFFIXES = (".png", ".pdf", ".svg")
LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "fedfew",  # the same picture is the same file
}


def demo(runs: Mapping[str, Run], groups: Sequence[int], path: Path, highlight: str, group_names: Sequence[str]) -> Path:
    """Learning curves of all runs above; the weights of the one to highlight, over rounds, below."""
    with written(path, width=9.6, height=6.6) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=(1, 1.08), hspace=0.04)
        _curve_panels(above, {label: run.history for label, run in runs.items()}, score_name(runs[highlight]))
        title = f"{highlight}: how much each client counts for each model (w), and in all (α)"
        below.suptitle(title, x=0.01, ha="left", fontsize=10)
        _weight_panels(below, runs[highlight].history, groups, group_names)
    return path


def run(finished: Run, path: Path, groups: Sequence[int] | None = None) -> Path:
    """Learning curves of one run and, where the method has them, its weights over rounds."""
    history = finished.history
    with_weights = {"alpha", "w"} <= set(history.columns)
    with written(path, width=9.6, height=7.0 if with_weights else 3.6) as figure:
        parts = figure.subfigures(2 if with_weights else 1, 1, squeeze=False)[:, 0]
        _client_panels(parts[0], history, score_name(finished))
        parts[0].suptitle(_run_title(finished), x=0.01, ha="left", fontsize=10)
        if with_weights:
            parts[1].suptitle("How much each client counts for each model (w), and in all (α)", x=0.01, ha="left", fontsize=10)
            _weight_panels(parts[1], history, groups, client_names=finished.data.client_names)
    return path


def comparison(runs: Mapping[str, Sequence[Run]], path: Path, title: str) -> Path:
    """One line per method, the best served mean on top: both scores' means with their spread over seeds, and the worst client."""
    rows = {label: across_seeds(row) for label, row in runs.items()}
    order = sorted(rows, key=lambda label: rows[label]["served"].mean)
    called = score_name(next(iter(runs.values()))[0])
    with written(path, width=8.6, height=1.5 + 0.36 * len(runs)) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, column, name in zip(axes, ("mean", "worst"), ("mean over clients", "worst client"), strict=True):
            for score in SCORES:
                dots(axis, [rows[label][score] for label in order], column, score)
            axis.set_title(name)
            axis.set_xlabel(f"test {called}, %")
            axis.set_yticks(range(len(order)), order)
            axis.set_ylim(-0.6, len(order) - 0.4)
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return path


def dots(axis: Any, rows: Sequence[AcrossSeeds], column: str, score: str) -> None:
    """One line per method: one score's mean or worst client, the mean with its spread over seeds; nothing where that is not
    finite."""
    marker, colour, fill, height = MARKERS[score]
    spread = [100 * np.nan_to_num(row.std_over_seeds) for row in rows] if column == "mean" else None
    axis.errorbar(
        [100 * getattr(row, column) for row in rows],
        np.arange(len(rows)) + height,
        xerr=spread,
        label=f"{score}: {MEANING[score]}",
        fmt=marker,
        color=colour,
        mfc=fill,
        ms=6,
        capsize=2,
        elinewidth=1,
    )


def check_name(path: Path) -> None:
    """Raise ValueError now, rather than after hours of training, where the name is not one of a picture."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a plot's name must end in {' or '.join(SUFFIXES)}, not {path.name!r}")


def check_output(path: Path | None) -> None:
    """Raise now where a plot, if one is asked for, could not be written to ``path`` later."""
    if path is not None:
        check_name(path)
        check_writable(path)


@contextmanager
def written(*paths: Path, width: float, height: float) -> Iterator[Any]:
    """A figure to draw on, written to all ``paths`` when done; leaves matplotlib's own settings as they were."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    for path in paths:
        check_name(path)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def _curve_panels(figure: Any, histories: Mapping[str, History], called: str) -> None:
    """Served and adapted scores side by side, one line per method. called: the score's name."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, score in zip(axes, SCORES, strict=True):
        for (label, history), (colour, dashes) in zip(histories.items(), STYLES, strict=True):
            axis.plot(history.round, 100 * mean_curve(history, score), color=colour, ls=dashes, lw=1.8, label=label)
        axis.set_title(f"{score}: {MEANING[score]}")
        rounds_axis(axis)
    axes[0].set_ylabel(f"test {called},\nmean over clients, %")
    axes[0].legend(loc="lower right", reverse=True)


def _client_panels(figure: Any, history: History, called: str) -> None:
    """Mean over clients, and between worst and best client. called: the score's name."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, score in zip(axes, SCORES, strict=True):
        values = 100 * history.scores(score)
        axis.fill_between(
            history.round, np.nanmin(values, 1), np.nanmax(values, 1), color="#d9d9d9", lw=0, label="worst to best client"
        )
        axis.plot(history.round, 100 * mean_curve(history, score), color=STYLES[-1][0], lw=1.8, label="mean over clients")
        axis.set_title(f"{score}: {MEANING[score]}")
        rounds_axis(axis)
    axes[0].set_ylabel(f"test {called}, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _run_title(finished: Run) -> str:
    about = finished.settings["federation"]
    data = f"{for_plot(about['name'])}, {counted(about['clients'], 'client')}"
    return f"{finished.settings['method']['name']} on {data}, round {finished.round}"


def rounds_axis(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _weight_panels(
    figure: Any,
    history: History,
    groups: Sequence[int] | None,
    group_names: Sequence[str] | None = None,
    client_names: Sequence[str] = (),
) -> None:
    """Heat maps, clients by rounds: w for each model, then α; grey where a client was absent.

    Clients are sorted by their true group, if there is one; else they have their names, if these are few enough to be read.
    """
    w, alpha = history["w"], history["alpha"]
    order = np.argsort(groups, kind="stable") if groups is not None else np.arange(w.shape[1])
    axes = figure.subplots(1, w.shape[2] + 1, sharey=True)
    extent = (history.round[0] - 0.5, history.round[-1] + 0.5, len(order) - 0.5, -0.5)
    look = {"aspect": "auto", "interpolation": "nearest", "extent": extent, "cmap": "Blues", "vmin": 0}
    for k, axis in enumerate(axes[:-1]):
        image = axis.imshow(w[:, order, k].T, vmax=1, **look)
        axis.set_title(f"model {k}")
    bright = axes[-1].imshow(alpha[:, order].T, **look)
    axes[-1].set_title("α")
    figure.colorbar(image, ax=axes[:-1], location="bottom", shrink=0.4, aspect=35, label="w")
    figure.colorbar(bright, ax=axes[-1:], location="bottom", aspect=14, label="α")
    for axis in axes:
        axis.grid(False)
        axis.tick_params(left=False)
        axis.set_facecolor(ABSENT)
        axis.spines[["left", "bottom"]].set_visible(False)
        rounds_axis(axis)
    if groups is None:
        axes[0].set_ylabel("client")
        if 0 < len(client_names) <= MOST_NAMES:
            axes[0].set_yticks(range(len(client_names)), [for_plot(shortened(name)) for name in client_names], fontsize=7)
    else:
        _label_groups(axes, np.asarray(groups)[order], group_names)


def _label_groups(axes: Any, groups: Any, names: Sequence[str] | None) -> None:
    """Lines between the groups of the sorted clients, and their names at the left."""
    begins = [i for i in range(1, len(groups)) if groups[i] != groups[i - 1]]
    for axis in axes:
        for begin in begins:
            axis.axhline(begin - 0.5, color="#444444", lw=0.7)
    edges = [0, *begins, len(groups)]
    middles = [(a + b - 1) / 2 for a, b in pairwise(edges)]
    axes[0].set_yticks(middles, [names[groups[a]] if names else f"group {groups[a]}" for a in edges[:-1]])
    axes[0].set_ylabel("clients")
