"""How long a study will take: from similar runs that are finished, else from a few timed steps.

The work of a run is counted in sample passes (forward and backward) by :mod:`fedfew.evaluation.costs`. The seconds per pass are
measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedfew.studies.folder import RunFolder
from fedfew.studies.store import readable_result
from fedfew.studies.timed_steps import DIGITS, Kind, timed
from fedfew.training.from_settings import make_method
from fedfew.training.own_method import is_own
from fedfew.training.settings import Settings

TRAIN_SHARE = 0.75  # of the samples; the rest is for test
FORWARD = 1 / 3  # of the work of a pass forward and backward
UNKNOWN = 10_000  # samples
BEFORE_AND_AFTER = 1.5  # seconds, for reading data, trying engines and the final scores


@dataclass(frozen=True)
class Estimate:
    """Seconds of every run by key (None: unknown), and what they are based on."""

    seconds: dict[str, float | None]
    from_runs: int  # of how many runs the speed is known from finished ones
    from_steps: int  # and of how many from timed steps
    as_if_alone: int = 0  # runs of packs, which share a stack, estimated by the speed of runs made alone
    impossible: tuple[str, ...] = ()  # for each run whose estimate raised an error: the method, and the error

    def total(self, workers: int) -> float | None:
        """Seconds of all runs on so many workers; None where nothing is known of one."""
        known = [value for value in self.seconds.values() if value is not None]
        if len(known) < len(self.seconds) or not known:
            return None
        return max(sum(known) / workers, max(known))

    @property
    def how(self) -> str:
        parts = []
        if self.from_runs:
            parts.append(f"{self.from_runs} from the speed of similar runs in this folder")
        if self.from_steps:
            parts.append(f"{self.from_steps} from training steps timed just now")
        if self.impossible:
            parts.append(f"{len(self.impossible)} without an estimate, {'; '.join(dict.fromkeys(self.impossible))}")
        if unknown := len(self.seconds) - self.from_runs - self.from_steps - len(self.impossible):
            parts.append(f"{unknown} unknown, since your own data are unknown before they are read")
        if self.as_if_alone:
            parts.append(f"{self.as_if_alone} as if made alone, though packs take less time")
        return ", ".join(parts)


def estimate(root: Path, runs: dict[str, Settings], workers: int = 1, packed: Collection[str] = ()) -> Estimate:
    """An estimate for these runs, by key. packed: the keys of runs that will share a stack with others.

    A run that cannot be estimated, for whatever reason, has none: no study is stopped by that.
    """
    from fedfew.studies.workers import threads

    alone, in_packs = _measured(root, packed=False), _measured(root, packed=True)
    seconds: dict[str, float | None] = {}
    impossible: list[str] = []
    from_runs = from_steps = as_if_alone = 0
    for key, settings in runs.items():
        seconds[key] = None
        try:
            kind, passes = _kind(settings), settings.rounds * work(settings)
            measured = in_packs if key in packed and kind in in_packs else alone
            rate = measured[kind] if kind in measured else timed(kind, threads(workers))
        except Exception as error:
            impossible.append(f"{settings.method}: {type(error).__name__}: {error}")
            continue
        if rate is None:
            continue
        from_runs, from_steps = from_runs + (kind in measured), from_steps + (kind not in measured)
        as_if_alone += key in packed and measured is alone
        seconds[key] = passes * rate + (0 if kind in measured else BEFORE_AND_AFTER)
    return Estimate(seconds, from_runs, from_steps, as_if_alone, tuple(impossible))


def format_duration(seconds: float) -> str:
    """A duration, as roughly as it is known."""
    minutes = seconds / 60
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if minutes < 90:
        return f"{round(minutes)} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


# -- work --------------------------------------------------------------------------------------------------------------------


def work(settings: Settings) -> float:
    """Sample passes of one round, scoring included."""
    samples = settings.sample or _samples(settings.dataset, settings.data_dir)
    train, test = TRAIN_SHARE * samples, (1 - TRAIN_SHARE) * samples
    gradient, forward, choices, finishing = _passes(json.dumps(settings.method_settings), settings.method, settings.local_epochs)
    training = settings.participation * train * (gradient + FORWARD * forward)
    scoring = 2 * FORWARD * choices * (test + (train if choices > 1 else 0))  # served, and adapted
    return training + (scoring + train * finishing) / settings.score_every


@cache
def _passes(method_settings: str, method: str, epochs: int) -> tuple[int, int, int, int]:
    """How often a client sends its data forward and backward, and forward only; among how many models it chooses; and how often
    it sends them forward and backward once more where the round is scored.

    These do not depend on model or data, so the smallest ones are measured.
    """
    import numpy as np

    from fedfew.evaluation.costs import cost
    from fedfew.federation import Federation

    if is_own(method):  # it is not imported for an estimate
        return epochs, 0, 1, 0
    made = make_method(Settings(method=method, method_settings=json.loads(method_settings)))
    few = max(2, getattr(made, "models", None) or 1)  # None: all of the others (FedFomo)
    client = np.zeros((2, 2), dtype=np.float32), np.array([0, 1])
    try:
        c = cost(made, "mlp", Federation.from_arrays([client] * few, [client] * few, classes=2), epochs, 2)
    except ValueError:  # a setting with one number per client, or a head by name
        return epochs * made.replicas, 0, made.replicas, 0
    return c.gradient_passes, c.forward_passes, max(1, c.selection_passes), c.finish_passes


@cache
def _samples(dataset: str, data_dir: str | None) -> int:
    """Rows of the data set in the data folder, else of the public one; UNKNOWN for other data."""
    import pyarrow.parquet as pq

    from fedfew.data.finding import data_folder
    from fedfew.data.sources import SOURCES

    if dataset == "digits":
        return DIGITS[2]
    source = SOURCES.get(dataset)
    if source is None:
        return UNKNOWN
    folder = data_folder(data_dir)
    for place in [folder / name for name in source.folder_names] if folder else []:
        files = list(place.rglob("*.parquet")) if place.is_dir() else []
        if files:
            return sum(pq.ParquetFile(path).metadata.num_rows for path in files)
    return source.rows or UNKNOWN


# -- speed -------------------------------------------------------------------------------------------------------------------


def _kind(settings: Settings) -> Kind:
    from fedfew.util.devices import device_named

    return settings.dataset, settings.model, settings.batch_size, device_named(settings.device).type


def _measured(root: Path, packed: bool) -> dict[Kind, float]:
    """Seconds per sample pass, by kind, of the finished runs below a folder: those of packs, or those made alone."""
    rates: dict[Kind, list[float]] = {}
    for path in sorted(root.glob("runs/*/result.json")):
        try:
            row = (readable_result(RunFolder(path.parent)) or {}).get("run", {})
            if not (row.get("seconds") and row.get("rounds") and packed == ((row.get("packed") or 1) > 1)):
                continue
            settings = _settings_of(row)
            rate = row["seconds"] / row["rounds"] / work(settings)
        except Exception:  # a damaged file, or a run whose work cannot be counted: it gives no estimate of the speed
            continue
        kind = settings.dataset, settings.model, settings.batch_size, "cpu" if row["device"] == "cpu" else "cuda"
        rates.setdefault(kind, []).append(rate)
    return {kind: statistics.median(values) for kind, values in rates.items()}


def _settings_of(row: dict[str, Any]) -> Settings:
    config = json.loads(row["settings"])
    method = config.pop("method")
    return Settings.from_json(config | {"method": method.pop("name"), "method_settings": method})
