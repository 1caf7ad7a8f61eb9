"""The score over something, one line per method, one panel per score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedfew.studies.captions import score_name
from fedfew.studies.figures.style import MEANING, empty_panel, ends_of, label_ends, line_styles, percent_limits
from fedfew.studies.view import Line, View

HEIGHT = 3.6  # inches of a panel

DrawLine = Callable[[Any, str, Line, dict[str, Any]], None]
"""draw(axis, score, line, style): nothing where no run of this line is done."""


def score_panels(figure: Any, view: View, column: str, scores: Sequence[str], over: str, draw: DrawLine) -> None:
    """over: the label of the x-axis."""
    axes = np.atleast_1d(figure.subplots(1, len(scores), sharey=True))
    for axis, score in zip(axes, scores, strict=True):
        for line, style in zip(view.lines, line_styles([line.row for line in view.lines]), strict=True):
            draw(axis, score, line, style)
        if not axis.get_lines():
            empty_panel(axis, "no run is done yet")
        axis.set_title(MEANING[score])
        axis.set_xlabel(over)
        axis.tick_params(labelleft=True)
    percent_limits(axes)
    for axis in axes:
        label_ends(axis, ends_of(axis), HEIGHT)
    axes[0].set_ylabel(f"test {score_name(view.runs_of(column))}, %")
