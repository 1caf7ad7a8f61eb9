"""A study from its file to its results: plan, look at what is there, run what is not, collect."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedfew.studies import availability, runner, store
from fedfew.studies.estimate import Estimate, estimate
from fedfew.studies.folder import LOG, RunFolder, StoredPlan, write_plan
from fedfew.studies.key import OUTCOME_VERSION
from fedfew.studies.plan import Cell, Options, cells
from fedfew.studies.study import Study

WRITE_EVERY = 20.0  # seconds between two writings of the tables while runs are going


@dataclass(frozen=True)
class Prepared:
    """A study whose runs are planned and looked up; nothing has been run or written yet."""

    study: Study
    options: Options
    root: Path
    cells: list[Cell]
    missing: dict[str, str]  # data sets that are not here, and how to get them
    done: dict[str, Cell]  # by key; every run is here once, however many places it has in the study
    failed: dict[str, str]  # key → why, of runs that will not be tried again
    new: dict[str, Cell]
    without_data: dict[str, Cell]
    workers: int

    @property
    def folder(self) -> Path:
        return self.root / self.study.name

    @property
    def protocol_changes(self) -> dict[str, list[str]]:
        """What the protocol changed, and in which columns."""
        changed: dict[str, dict[str, None]] = {}
        for cell in self.cells:
            for change in cell.changed:
                changed.setdefault(f"{cell.protocol}: {change}", {})[cell.column] = None
        return {change: list(columns) for change, columns in changed.items()}

    @cached_property
    def estimate(self) -> Estimate:
        return estimate(self.root, {key: cell.settings for key, cell in self.new.items()}, self.workers)

    def run(self, watcher: runner.Watcher, *, keep_models: bool = False) -> tuple[runner.Report, str | None]:
        """Make the runs that are new, keep the tables up to date; the report, and the length of a plan that had to make way."""
        plan, dropped = write_plan(self.folder, self.study.text, self.options.length, self.cells, self.missing)
        write = _Writer(self.root, self.folder, plan)
        jobs = [runner.Job(key, cell.label, cell.settings, self.estimate.seconds[key] or 1.0) for key, cell in self.new.items()]
        for job in jobs:
            (RunFolder.of(self.root, job.key).path / "error.json").unlink(missing_ok=True)
        report = runner.run(
            self.root,
            jobs,
            watcher,
            workers=self.workers,
            code=f"outcomes-{OUTCOME_VERSION}",
            log=self.folder / LOG,
            keep_models=keep_models,
            finished=write.sometimes,
        )
        write.now()
        return report, dropped


@dataclass
class _Writer:
    root: Path
    folder: Path
    plan: StoredPlan
    last: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def sometimes(self) -> None:
        if self.clock() - self.last >= WRITE_EVERY:
            self.now()

    def now(self) -> None:
        store.write(self.folder, store.collect(self.root, self.plan.cells, self.plan.missing))
        self.last = self.clock()


def prepare(study: Study, options: Options, root: Path, *, workers: int | None = None, retry_failed: bool = False) -> Prepared:
    """Plan a study and see which of its runs are there. Raises ValueError where anything in it makes no sense."""
    planned = cells(study, options)
    missing = availability.missing(cell.settings for cell in planned)
    unique = {cell.key: cell for cell in planned}
    done, failed, new, without = {}, {}, {}, {}
    for key, cell in unique.items():
        folder = RunFolder.of(root, key)
        if folder.finished:
            done[key] = cell
        elif cell.settings.dataset in missing:
            without[key] = cell
        elif not retry_failed and (error := folder.error) is not None:
            failed[key] = error["message"]
        else:
            new[key] = cell
    if workers is None:
        workers = min(runner.default_workers(cell.settings.device) for cell in planned)
    return Prepared(study, options, root, planned, missing, done, failed, new, without, min(workers, max(1, len(new))))


def collect_results(root: Path, name: str) -> tuple[store.Results, StoredPlan]:
    """The results of a study that was run before, as they are now."""
    plan = StoredPlan.read(root / name)
    if plan is None:
        raise ValueError(f"the study {name} has not been run in {root}: 'fedfew study run {name}' does that")
    results = store.collect(root, plan.cells, plan.missing)
    store.write(root / name, results)
    return results, plan
