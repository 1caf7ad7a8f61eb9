"""A run shown in TensorBoard, MLflow or Weights & Biases while it goes. See ``docs/tracking.md``.

    with fedfew.tracking.open("tensorboard:logs") as track:
        run = fedfew.train(federation, on_round=track)
        track.finish(run)

Each tool is one small file here, loaded only when used. None can end a training run: one that fails is left out, with
a warning.

Imports report, evaluation, training and all below them; only cli and the public names import it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from fedfew.tracking.tracker import KEPT, Sink, Tracker, TrackingWarning, as_a_warning
from fedfew.tracking.values import final_values, flattened, round_values
from fedfew.util.extras import install_command
from fedfew.util.spelling import unknown

__all__ = ["SINKS", "Sink", "Tracker", "TrackingWarning", "final_values", "flattened", "kept", "open", "round_values"]

SINKS = {"tensorboard": "Tensorboard", "mlflow": "MLflow", "wandb": "WandB"}  # modules here, and their classes


def open(
    *specs: str, folder: str | Path | None = None, name: str | None = None, warn: Callable[[str], None] = as_a_warning
) -> Tracker:
    """What ``train(on_round=…)`` can call, for these tools.

    specs: "tensorboard" or "tensorboard:FOLDER", "mlflow" or "mlflow:URI", "wandb", "wandb:PROJECT" or "wandb:ENTITY/PROJECT".
    folder: the run's; what is needed to continue the same tracked runs is kept there. name: of the run, in the tools.
    warn: called with the error of a tool that failed; a warning of Python's unless given.

    Raises ImportError, which names the extra to install, where a tool is not there.
    """
    place = None if folder is None else Path(folder)
    sinks: dict[str, Sink] = {}
    for spec in specs:
        tool, _, target = spec.partition(":")
        if tool not in SINKS:
            raise unknown("tracking tool called", tool, SINKS)
        if spec in sinks:
            raise ValueError(f"track names {spec!r} twice")
        try:
            made = getattr(importlib.import_module(f"fedfew.tracking.{tool}"), SINKS[tool])
        except ImportError as error:
            raise ImportError(f"track is {spec!r}, but {tool} cannot be imported ({error}): {install_command(tool)}") from error
        sinks[spec] = made(target, place)
    return Tracker(sinks, place, name or (place.name if place else "fedfew"), warn)


def kept(folder: str | Path) -> Iterable[str]:
    """What the run in a folder was tracked with."""
    try:
        return list(json.loads((Path(folder) / KEPT).read_text()))
    except FileNotFoundError:
        return []
