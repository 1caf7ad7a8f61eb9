"""Figures of a study, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfew.studies import captions
from fedfew.studies import output_options as options
from fedfew.studies.figures import methods, rounds, sweeps, weights
from fedfew.studies.figures.style import Drawing
from fedfew.studies.store import Results
from fedfew.studies.view import View, views

KINDS: dict[str, Callable[[Mapping[str, Any], View], list[Drawing]]] = {
    "accuracy-by-k": sweeps.accuracy_by_k,
    "accuracy-by-mu": sweeps.accuracy_by_mu,
    "accuracy-by-epochs": sweeps.accuracy_by_epochs,
    "fairness-by-mu": weights.fairness_by_mu,
    "weights-by-mu": weights.weights_by_mu,
    "g-over-rounds": rounds.g_over_rounds,
    "g-over-updates": rounds.g_over_updates,
    "curves": rounds.curves,
    "methods": methods.methods,
    "clients": methods.per_client,
}
_SWEPT = {"by": options.AXIS, "score": options.SCORE, "measure": options.one_of("mean", "weighted_mean", "worst_tenth")}
OPTIONS: dict[str, options.Options] = {
    "accuracy-by-k": _SWEPT,
    "accuracy-by-mu": _SWEPT,
    "accuracy-by-epochs": {name: option for name, option in _SWEPT.items() if name != "by"},
    "fairness-by-mu": {"by": options.AXIS, "score": options.SCORE},
    "weights-by-mu": {"by": options.AXIS},
    "g-over-rounds": {"by": options.AXIS},
    "g-over-updates": {"by": options.AXIS},
    "curves": {"score": options.SCORE, "measure": options.one_of("mean", "min", "weighted_mean")},
    "methods": {"score": options.SCORE, "measure": options.one_of("mean", "min")},
    "clients": {"score": options.SCORE},
}


def check(spec: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown kind of figure, an unknown option or a wrong value of one."""
    options.check("figure", spec, OPTIONS)


def drawings(specs: Sequence[Mapping[str, Any]], results: Results, study: str) -> list[Drawing]:
    """The pictures of all specs, protocol by protocol, not drawn yet; no two of one name."""
    for spec in specs:
        check(spec)
    found = [drawing for spec in specs for view in views(spec, results, study) for drawing in KINDS[spec["kind"]](spec, view)]
    return captions.distinct(found)


def draw(specs: Sequence[Mapping[str, Any]], results: Results, study: str, folder: Path) -> list[Path]:
    """Write every picture into the folder, as PNG and as SVG; the paths, PNG first."""
    from fedfew.report.plots import written

    paths = []
    for drawing in drawings(specs, results, study):
        pair = [folder / f"{drawing.name}{suffix}" for suffix in (".png", ".svg")]
        with written(*pair, width=drawing.width, height=drawing.height) as figure:
            drawing.paint(figure)
        paths += pair
    return paths
