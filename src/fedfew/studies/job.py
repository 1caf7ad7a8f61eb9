"""Jobs of the runner: what it is given, and what it reports."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from fedfew.studies.packing import pack_of
from fedfew.training.settings import Settings


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    key: str
    label: str
    settings: Settings
    seconds: float = 1.0  # an estimate, to put the longest first
    candidates: tuple[Settings, ...] = ()  # under the protocol tuned: settings to choose among
    values: tuple[dict[str, Any], ...] = ()  # of the hyperparameters, one entry per candidate

    @cached_property
    def pack(self) -> Hashable | None:
        """Jobs with the same one can be made in one stack; None: only alone."""
        return pack_of(self.settings, bool(self.candidates))


@dataclass
class Report:
    """What became of the jobs."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # key → reason
    left: list[str] = field(default_factory=list)  # not made, because the runner was stopped
    stopped: bool = False


class Watcher(Protocol):
    """Is notified of progress."""

    def on_event(self, worker: int, job: Job, event: dict[str, Any]) -> None:
        """``loading``, ``round``, ``done``, ``failed``, ``busy`` or ``stopped``, as :mod:`fedfew.studies.worker` sends them."""

    def stopping(self) -> None: ...
