"""Four panels: the smoothing bound, stationarity, coverage, and what samples cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedfew.report.plots import written
from fedfew.studies.theory.check import Check

BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#222222", "#8c8c8c"


def draw(found: list[Check], path: Path) -> Path:
    by_name = {check.name: check for check in found}
    with written(path, width=10.2, height=7.6) as figure:
        axes = figure.subplots(2, 2).ravel()
        _smoothing(axes[0], by_name["smoothing bound"])
        _stationarity(axes[1], by_name["Pareto stationarity"], by_name["the same, weights normalised"])
        _coverage(axes[2], by_name["coverage bound"])
        _statistical(axes[3], by_name["statistical error"])
    return path


def _smoothing(axis: Any, check: Check) -> None:
    scaled, log_m, log_k = (np.array(check.numbers[name]) for name in ("scaled", "log_clients", "log_models"))
    axis.fill_between([0, 6], [0, -6], [0, 0], color="#e9e9e9", lw=0, label="where the printed signs have it (and lower)")
    up = scaled > 0
    axis.scatter(log_m[~up], scaled[~up], s=7, color=BLUE, marker="o", lw=0, label="g_TCH below g_STCH, at log M")
    axis.scatter(log_k[up], scaled[up], s=9, color=ORANGE, marker="^", lw=0, label="above (as printed: never), at log K")
    ends = np.array([0, 6])
    axis.plot(ends, -ends, color=BLACK, lw=1, ls="--")
    axis.plot(ends, ends, color=BLACK, lw=1, ls="--", label="−log M and log K")
    axis.set(
        xlim=(0, 6),
        xlabel="log M, or log K",
        ylabel="(g_TCH − g_STCH) / μ",
        title="Smoothing: both signs occur, both ends attained",
    )
    axis.legend(loc="upper left", fontsize=8)


def _stationarity(axis: Any, plain: Check, normalised: Check) -> None:
    styles = ((plain, ORANGE, "^", "descent on g"), (normalised, BLUE, "o", "the same, weights normalised"))
    for check, colour, marker, label in styles:
        weight, distance = (np.array(check.numbers[name]) for name in ("weight", "distance"))
        axis.scatter(
            np.maximum(weight, 1e-20),
            np.maximum(distance, 1e-16),
            s=18,
            color=colour,
            marker=marker,
            lw=0,
            alpha=0.8,
            label=label,
        )
    axis.set(xscale="log", yscale="log", xlim=(3e-21, 3), ylim=(3e-17, 3e3))
    axis.set(xlabel="a model's weight, Σ_i α_i w_ik (1e−20: that or less)", ylabel="distance of 0 from the hull of ∇L_i")
    axis.set_title("Where ∇g ≈ 0: models without weight are not stationary")
    axis.legend(loc="center left", fontsize=8)


def _coverage(axis: Any, check: Check) -> None:
    rows = check.numbers["rows"]
    share, gap, pairs, fedfew = (np.array([row[name] for row in rows]) for name in ("share", "gap", "mean", "fedfew"))
    axis.plot([0, 1], [1, 0], color=BLACK, lw=1, ls="--", label="(1 − K/M) Δ_het")
    axis.scatter(share, (1 - share) * pairs, s=14, color=GREY, marker="_", label="(1 − K/M) · mean over pairs")
    axis.scatter(share + 0.008, fedfew, s=14, facecolors="none", edgecolors=ORANGE, marker="^", lw=0.8, label="FedFew, μ = 0.1")
    axis.scatter(share, gap, s=14, color=BLUE, marker="o", lw=0, label="best sets (exact)")
    axis.set(xlim=(0, 1.04), xlabel="K / M", ylabel="average gap / Δ_het", title="Coverage: the bound holds, and is far away")
    axis.legend(loc="upper right", fontsize=8)


def _statistical(axis: Any, check: Check) -> None:
    numbers = check.numbers
    samples = np.array(numbers["samples"])
    for K, colour, marker, dashes in ((1, BLACK, "s", ":"), (3, BLUE, "o", "-"), (6, ORANGE, "^", "--")):
        axis.plot(samples, numbers["excess"][K - 1], color=colour, marker=marker, ls=dashes, ms=4, lw=1.4, label=f"K = {K}")
    middle = numbers["excess"][2][0]
    axis.plot(samples, middle * (samples[0] / samples) ** 0.5, color=GREY, lw=1, label="as 1/√n (the bound's rate)")
    axis.plot(
        samples,
        3 * numbers["d"] * numbers["noise"] ** 2 / (2 * samples * numbers["M"]),
        color=GREY,
        lw=1,
        ls="-.",
        label="K d σ² / (2 n M), K = 3",
    )
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="samples per client, n",
        ylabel="excess loss",
        title="What samples cost (three true groups, M = 6)",
    )
    axis.legend(loc="lower left", fontsize=8)
