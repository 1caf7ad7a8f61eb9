"""Between a run and the tracking tools: passes on its rounds, and keeps a tool's errors away from training."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from operator import methodcaller
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from fedfew.tracking.values import final_values, flattened, round_values
from fedfew.util.files import write_atomically

if TYPE_CHECKING:
    from fedfew.training.on_round import Progress
    from fedfew.training.run import Run

KEPT = "tracking.json"  # in a run's folder: by spec, what the tool calls the run, and the last round that was logged


class Sink(Protocol):
    """A tool. Whatever it raises is caught."""

    def begin(self, settings: Mapping[str, Any], name: str, known: str | None) -> str | None:
        """Begin a run, or continue the one with the id ``known``; returns the tool's id of this one."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self, finished: bool, files: Iterable[Path]) -> None:
        """The run has ended, or was stopped; files to keep with it."""


class TrackingWarning(UserWarning):
    """A tool failed and is left out; training continues."""


def as_a_warning(text: str) -> None:
    warnings.warn(text, TrackingWarning, stacklevel=4)


class Tracker:
    """Called after every round (``on_round``); :meth:`finish` logs the final scores and sends files."""

    def __init__(
        self, sinks: Mapping[str, Sink], folder: Path | None, name: str, warn: Callable[[str], None] = as_a_warning
    ) -> None:
        self._sinks = dict(sinks)
        self._folder = folder
        self._name = name
        self._warn = warn
        self._kept = self._read()
        self._begun = self._ended = False

    def __call__(self, progress: Progress) -> None:
        if not self._sinks:
            return
        self._begin(progress.settings)
        values = round_values(progress)
        for spec in list(self._sinks):
            if progress.round > self._kept[spec]["round"]:  # else it was logged before: training went back to the last checkpoint
                self._guarded(spec, lambda sink: sink.log(progress.round, values))
                if spec in self._sinks:
                    self._kept[spec]["round"] = progress.round
        self._write()

    def finish(self, run: Run, final: Mapping[str, Any] | None = None, files: Iterable[Path] = ()) -> None:
        """The run's last scores, and those of the files that are there, sent; once, however often a finished run is resumed.

        final: scores of every client by name, as ``fedfew run`` computes them in the end.
        """
        self._sinks = {spec: sink for spec, sink in self._sinks.items() if self._kept[spec]["finished"] != run.round}
        if not self._sinks:
            return
        self._begin(run.settings)
        values = final_values(run, final or {})
        for spec in list(self._sinks):
            self._guarded(spec, lambda sink: sink.log(run.round, values))
        self._end(True, [path for path in files if path.exists()])
        for spec in self._sinks:
            self._kept[spec]["finished"] = run.round
        self._write()

    def close(self) -> None:
        """The run was stopped, unless it was finished before."""
        self._end(False, [])

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin(self, settings: Mapping[str, Any]) -> None:
        if self._begun:
            return
        self._begun = True
        plain = flattened(settings)
        for spec in list(self._sinks):
            known = self._kept[spec]["run"]
            called = self._guarded(spec, methodcaller("begin", plain, self._name, known))
            if spec in self._sinks:
                self._kept[spec]["run"] = called

    def _end(self, finished: bool, files: list[Path]) -> None:
        if self._ended or not self._begun:
            return
        self._ended = True
        for spec in list(self._sinks):
            self._guarded(spec, lambda sink: sink.end(finished, files))

    def _guarded(self, spec: str, do: Callable[[Sink], Any]) -> Any:
        """What a tool returns. A tool that fails is not called again: each try may wait for a server that does not answer."""
        try:
            return do(self._sinks[spec])
        except Exception as error:
            del self._sinks[spec]
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            self._warn(f"tracking with {spec} failed, training continues without it: {reason}")
            return None

    def _read(self) -> dict[str, dict[str, Any]]:
        """What was kept of each tool before; the last round that was logged is 0 for one that has logged none."""
        before: dict[str, dict[str, Any]] = {}
        if self._folder is not None and (self._folder / KEPT).exists():
            before = json.loads((self._folder / KEPT).read_text())
        return {spec: {"run": None, "round": 0, "finished": None} | before.get(spec, {}) for spec in self._sinks}

    def _write(self) -> None:
        if self._folder is not None and self._folder.is_dir():
            write_atomically(self._folder / KEPT, json.dumps(self._kept))
