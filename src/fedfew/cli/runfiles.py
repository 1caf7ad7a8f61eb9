"""Small files in a run's folder that are for looking at: label counts, costs, and how far the run is."""

from __future__ import annotations

import io
import json
import math
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.training.run_files import CONFUSION, COSTS, LABELS, PROGRESS
from fedfew.util.files import write_atomically

if TYPE_CHECKING:
    from fedfew.federation import Federation
    from fedfew.training.on_round import Progress

NAMES = (LABELS, COSTS, PROGRESS, CONFUSION)
LARGEST = 2 * 2**30  # bytes of clients' models up to which costs are counted: counting makes a state as large as the run's


def write_labels(folder: Path, federation: Federation) -> None:
    """How many training samples of each label every client has, ``train[M, classes]``: compressed, since there may be many.

    Nothing for a regression and for language modelling, which have no labels.
    """
    if federation.task in ("regression", "language-modelling"):
        return
    import numpy as np
    import torch

    samples, classes = federation.train, federation.classes
    y, start, count = samples.y.cpu(), samples.start.cpu(), samples.count.cpu()
    owner = torch.arange(len(count)).repeat_interleave(count)
    first_of_owner = (count.cumsum(0) - count)[owner]
    rows = start[owner] + torch.arange(len(owner)) - first_of_owner
    if federation.task == "classification":
        counts = torch.bincount(owner * classes + y[rows], minlength=len(count) * classes).reshape(-1, classes)
    else:
        counts = torch.zeros(len(count), classes).index_add_(0, owner, y[rows])
    file = io.BytesIO()
    np.savez_compressed(file, train=counts.numpy().astype(np.uint32))
    write_atomically(folder / LABELS, file.getvalue())


def write_costs(folder: Path, arguments: dict[str, Any], federation: Federation) -> None:
    """What a round costs, from the arguments of :func:`fedfew.train`; left out where counting would take much memory, and with a
    warning where it fails."""
    try:
        _write_costs(folder, arguments, federation)
    except Exception as error:  # a run must not end because of what only its report shows
        warnings.warn(f"the costs of a round could not be counted: {type(error).__name__}: {error}", stacklevel=2)


def _write_costs(folder: Path, arguments: dict[str, Any], federation: Federation) -> None:
    from fedfew.adapters import TrainedPart
    from fedfew.evaluation.costs import cost, module_of
    from fedfew.models.state import replica_state
    from fedfew.stack import count_bytes

    built = module_of(arguments["model"], federation, TrainedPart.recorded(arguments))
    if count_bytes(dict(replica_state(built))) * len(federation) > LARGEST:
        return
    training = (arguments[name] for name in ("local_epochs", "batch_size", "serve"))
    counted = cost(arguments["method"], lambda: built, federation, *training)
    write_atomically(folder / COSTS, json.dumps(asdict(counted)))


REPORTED = ("round", "rounds", "loss", "served", "adapted", "seconds")  # of a run's progress after a round


class ProgressFile:
    """How far a run is, written down after its rounds, at most once a second, for those who watch."""

    def __init__(self, folder: Path, seconds: float = 1.0) -> None:
        self._path = folder / PROGRESS
        self._seconds = seconds
        self._written = float("-inf")
        self._last: dict[str, Any] = {}

    def write(self, state: Progress) -> None:
        numbers = {name: getattr(state, name) for name in REPORTED}
        self._last = {name: value if value is not None and math.isfinite(value) else None for name, value in numbers.items()}
        if state.done or time.monotonic() - self._written >= self._seconds:
            self._write("finished" if state.done else "running")

    def stopped(self, why: str) -> None:
        """The run has ended before its last round."""
        if self._last:
            self._write("stopped", why=why)

    def _write(self, state: str, **more: str) -> None:
        write_atomically(self._path, json.dumps(self._last | {"state": state} | more))
        self._written = time.monotonic()
