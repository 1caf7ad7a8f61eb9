"""A worker makes runs, one after the other or several in one stack, and reports what happens as events."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.studies import run_result, tuning
from fedfew.studies.folder import RunFolder, now
from fedfew.training.from_settings import for_task, make_federation, training_arguments
from fedfew.training.settings import OF_THE_DATA, Settings
from fedfew.util.files import FolderInUseError, folder_locked

if TYPE_CHECKING:
    from fedfew.evaluation.costs import Cost
    from fedfew.federation import Federation
    from fedfew.training.on_round import Progress
    from fedfew.training.run import Run

Candidates = list[tuple[dict[str, Any], Settings]]  # values of the hyperparameters, and all settings with them

PROGRESS = ("round", "rounds", "loss", "served", "adapted", "seconds")  # what a round's event reports
EVENT_EVERY = 0.1  # seconds: at most so often


def data_of(settings: Settings) -> tuple[Any, ...]:
    """The settings that decide which federation is loaded."""
    return tuple(getattr(settings, name) for name in OF_THE_DATA)


@dataclass
class Worker:
    """Makes runs. Keeps the federations of its last runs: most runs of a study share theirs with the next."""

    root: Path
    keep_models: bool
    code: str  # version of the code, recorded with the results
    workers: int  # how many there are in all
    send: Callable[[dict[str, Any]], None]
    stopping: threading.Event = field(default_factory=threading.Event)
    _data: dict[tuple[Any, ...], tuple[Federation, list[str]]] = field(default_factory=dict)
    _wanted: set[tuple[Any, ...]] = field(default_factory=set)  # the data of the pack that is being made
    _loading: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of the two flags

    def stop(self) -> None:
        """End after the current round. While data are loaded there is none, and loading may hang: the process ends at once."""
        with self._lock:
            self.stopping.set()
            if self._loading:
                os._exit(0)

    def make_pack(self, runs: Sequence[dict[str, Any]]) -> None:
        """Make several runs in one stack; each ends as by :meth:`make`. runs: its arguments."""
        from fedfew.engines.packed import Pack

        self._wanted = {data_of(run["settings"]) for run in runs}
        for ended in Pack().run([partial(self.make, **run) for run in runs]):
            if isinstance(ended, BaseException):
                raise ended

    def make(self, key: str, settings: Settings, candidates: Sequence[Settings] = (), values: Sequence[Any] = ()) -> None:
        """Make a run. Its last event is ``done``, ``failed``, ``busy`` (another runner holds it) or ``stopped``."""
        folder = RunFolder.of(self.root, key)
        try:
            with folder_locked(folder.path, wait=0):
                self._locked(key, settings, folder, list(zip(values, candidates, strict=True)))
        except FolderInUseError:
            self.send({"event": "busy", "key": key})

    def _locked(self, key: str, settings: Settings, folder: RunFolder, candidates: Candidates) -> None:
        if folder.finished:  # by another runner, a moment ago
            self.send({"event": "done", "key": key})
            return
        if (failed := folder.error) is not None:  # the same: the error of a run to be tried again is deleted before
            self.send({"event": "failed", "key": key, "error": failed["message"]})
            return
        try:
            self._train(key, settings, folder, candidates)
        except KeyboardInterrupt:
            self.send({"event": "stopped", "key": key})
        except Exception as error:
            # Whatever went wrong with this run, the others continue; the reason is stored with it.
            folder.fail(error_text(error), type(error).__name__, traceback.format_exc())
            self.send({"event": "failed", "key": key, "error": error_text(error)})
            _free_memory()
        else:
            self.send({"event": "done", "key": key})

    def _train(self, key: str, settings: Settings, folder: RunFolder, candidates: Candidates) -> None:
        from fedfew.engines import packed
        from fedfew.engines.memory import share, too_large
        from fedfew.util.devices import device_named

        device = device_named(settings.device)
        begin, before = packed.clock(), folder.attempts
        started = before[0]["when"] if before else now()
        folder.record_attempt(event="begun", when=now(), pid=os.getpid())
        try:
            self.send({"event": "loading", "key": key})
            federation, notes = self._federation(settings)
            if settings.sample is not None:
                notes = [f"only {settings.sample:,} rows of the data set", *notes]
            share(device, self.workers)
            tuned = self._tuned(key, candidates, folder, federation) if candidates else None
            if tuned is not None:
                settings, notes = tuned[0], [*notes, tuning.in_words(tuned[1]["chosen"])]
            run = self._trained(key, settings, folder, federation, len(candidates) * settings.rounds)
        finally:
            seconds = packed.clock() - begin
            folder.record_attempt(event="ended", when=now(), pid=os.getpid(), seconds=seconds)
        member = packed.current()
        about = {
            "code": self.code,
            "packed": 1 if member is None else member.largest,
            "device": _device_name(device),
            "started": started,
            "tuning": None if tuned is None else json.dumps(tuned[1]),
            "seconds": seconds + sum(attempt.get("seconds", 0.0) for attempt in before),
        }
        spent, why_not = _cost(settings, federation)
        notes = [*notes, *why_not]
        here = federation.to(device, stream=too_large([federation.train, federation.test], device))
        folder.finish(run_result.run_result(run, here, settings, spent, about, notes), self.keep_models)

    def _tuned(
        self, key: str, candidates: Candidates, folder: RunFolder, federation: Federation
    ) -> tuple[Settings, dict[str, Any]]:
        """The candidate that is best on validation samples held out from the training data, and what is stored of the choice."""
        import fedfew
        from fedfew.evaluation.choosing_k import held_out_of_training

        data = held_out_of_training(federation, tuning.SHARE, candidates[0][1].data_seed)
        scores = []
        for number, (values, settings) in enumerate(candidates):
            place = RunFolder(folder.path / f"candidate-{number}")
            if (score := place.score) is None:
                try:
                    run = self._trained(key, settings, place, data, number * settings.rounds)
                    score = run_result.mean_served(run)
                except fedfew.DivergedError:
                    score = None, None
                place.finish_candidate(*score)
            scores.append(tuning.Score(values, *score))
        chosen = tuning.best(scores)
        return candidates[chosen][1], tuning.record(scores, chosen)

    def _trained(self, key: str, settings: Settings, folder: RunFolder, federation: Federation, before: int = 0) -> Run:
        """The run, resumed from its last checkpoint. before: rounds that were trained to tune it."""
        import fedfew
        from fedfew.training.checkpoint import CheckpointError

        last_event = 0.0

        def on_round(progress: Progress) -> None:
            nonlocal last_event
            if progress.done or time.perf_counter() - last_event >= EVENT_EVERY:
                last_event = time.perf_counter()
                values = {name: getattr(progress, name) for name in PROGRESS}
                values |= {name: before + values[name] for name in ("round", "rounds")}
                self.send({"event": "round", "key": key} | values)
            if self.stopping.is_set() and not progress.done:
                raise KeyboardInterrupt

        def train() -> Run:
            arguments = training_arguments(for_task(settings, federation))
            return fedfew.train(federation, folder=folder.path, resume=True, on_round=on_round, **arguments)

        try:
            return train()
        except CheckpointError as unusable:
            print(f"{key} is started again from round 0: {unusable}", file=sys.stderr)
            folder.drop_checkpoints()
            return train()
        except fedfew.DivergedError:
            folder.drop_checkpoints()  # resuming would diverge again
            raise

    def _federation(self, settings: Settings) -> tuple[Federation, list[str]]:
        from fedfew.engines import packed

        wanted = data_of(settings)
        if wanted not in self._data:
            keep = {wanted} if packed.current() is None else self._wanted
            self._data = {data: loaded for data, loaded in self._data.items() if data in keep}  # no others in memory
            with self._ended_by_stop():
                self._data[wanted] = make_federation(settings)
        return self._data[wanted]

    @contextmanager
    def _ended_by_stop(self) -> Iterator[None]:
        with self._lock:
            if self.stopping.is_set():
                raise KeyboardInterrupt
            self._loading = True
        try:
            yield
        finally:
            with self._lock:
                self._loading = False


def error_text(error: Exception) -> str:
    """The message in one line; of an unexpected error with its type in front."""
    from fedfew import DivergedError
    from fedfew.engines import UnsupportedModuleError

    text = " ".join(str(error).split()) or "no message"
    expected = (ValueError, OSError, ImportError, MemoryError, DivergedError, UnsupportedModuleError)
    return text if isinstance(error, expected) else f"{type(error).__name__}: {text}"


def _cost(settings: Settings, federation: Federation) -> tuple[Cost | None, list[str]]:
    """The costs of a round; None, and why, where they cannot be counted: the run is made, only a column of a table is missing."""
    from fedfew.evaluation.costs import cost_of

    try:
        return cost_of(settings, federation), []
    except Exception as error:
        return None, [f"the costs of a round could not be counted: {error_text(error)}"]


def _device_name(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _free_memory() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
