"""What a page is made from: a run's settings and history, read a round at a time.

A checkpoint holds the models as well, and a history of many clients and rounds is large. Only its head and single rows are read
here, so a page takes little memory, needs no module of the user's own, and can be made again and again while the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedfew.stack import tensor
from fedfew.training.checkpoint import CheckpointError, State, check_head, checkpoints
from fedfew.training.confusion import Confusion
from fedfew.training.data_record import DataRecord
from fedfew.util.files import sha256_of

Array = NDArray[Any]
ATTEMPTS = 5  # a run that goes on replaces its checkpoints; a reader then looks for the next


class Record(Protocol):
    """A run's settings, and its history by row."""

    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def round(self) -> int: ...
    @property
    def events(self) -> list[str]: ...
    @property
    def sites(self) -> bool:
        """Was it made on a network, by sites that keep their data?"""

    @property
    def data(self) -> DataRecord:
        """Names of clients and classes."""

    @property
    def scored(self) -> int:
        """How many rounds were scored."""

    @property
    def in_use(self) -> int:
        """The position of the scored round whose models clients use."""

    @property
    def columns(self) -> frozenset[str]: ...
    def row(self, column: str, at: int) -> Array:
        """One scored round's entry of a column."""


@dataclass(frozen=True)
class SideFiles:
    """The other files in a run's folder; all of them may be missing, as for a run saved from Python."""

    name: str = ""  # of the folder
    about: Mapping[str, Any] = field(default_factory=dict)  # samples and groups of the clients, names of classes
    labels: Array | None = None  # [M, classes]: training samples of each label
    final: Mapping[str, Any] = field(default_factory=dict)  # macro-F1, AUC, MAE, perplexity, … of each client
    config: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)  # fields of fedfew.evaluation.costs.Cost
    confusion: Confusion | None = None  # of the test samples, by what clients are served


class InMemory:
    """The record of a run in memory."""

    def __init__(self, state: State) -> None:
        self.settings, self.round, self.events = state.settings, state.round, state.events
        self.sites, self.data = bool(state.sites), state.data
        self.scored, self.columns = len(state.history), frozenset(state.history.columns)
        self._arrays = state.history.arrays()
        self.in_use = self.scored - 1
        if state.best:
            self.in_use = state.history["round"].tolist().index(int(tensor(state.best, "round")))

    def row(self, column: str, at: int) -> Array:
        return np.asarray(self._arrays[column][at])


class Stored:
    """The record in a checkpoint's folder, whose tensors stay on the disk."""

    def __init__(self, path: Path, opened: Any, about: dict[str, Any]) -> None:
        self.path = path
        self.settings, self.round, self.events = about["settings"], about["round"], about["events"]
        self.sites = bool(about.get("sites"))
        self.data = DataRecord.from_document(about.get("data", {}))
        names = [name for name in about["names"] if name.startswith("history/")]
        self._slices = {name.removeprefix("history/"): opened.get_slice(name) for name in names}
        self.columns = frozenset(self._slices)
        self.scored = int(self._slices["round"].get_shape()[0]) if self._slices else 0
        self.in_use = self.scored - 1
        if "best/round" in about["names"]:
            self.in_use = self._slices["round"][:].tolist().index(int(opened.get_tensor("best/round")))

    def row(self, column: str, at: int) -> Array:
        return np.asarray(self._slices[column][at : at + 1])[0]


@contextmanager
def newest(folder: Path) -> Iterator[Stored]:
    """The record in a run folder's newest intact checkpoint, for as long as the block within lasts."""
    from safetensors import SafetensorError, safe_open

    why: list[str] = []
    for _ in range(ATTEMPTS):
        found = checkpoints(folder)
        if not found:
            break
        for path in reversed(found):
            try:
                about = _checked(path)
                opened = safe_open(path / "state.safetensors", framework="np")
                record = Stored(path, opened.__enter__(), about)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                why.append(f"{path.name}: {error}")
                continue
            try:
                yield record
            finally:
                opened.__exit__(None, None, None)
            return
    if not why:
        raise CheckpointError(f"there is no checkpoint in {folder}")
    raise CheckpointError(f"no checkpoint in {folder} can be used: {'; '.join(dict.fromkeys(why))}")


def _checked(path: Path) -> dict[str, Any]:
    """A checkpoint's head, once the hash of its tensors has been found right (read in pieces, never as a whole)."""
    about: dict[str, Any] = json.loads((path / "state.json").read_text())
    check_head(about, "it")
    if sha256_of(path / "state.safetensors") != about["sha256"]:
        raise CheckpointError("it is damaged (its hash does not fit its contents)")
    return about
