"""A study from its file to its results: plan the runs, find those that exist, make the others, collect the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fedfew.studies import availability, packing, runner, store
from fedfew.studies.estimate import Estimate, estimate
from fedfew.studies.folder import ERROR, LOG, PLAN, RunFolder, StoredPlan, planned_otherwise, write_plan
from fedfew.studies.job import Job, Report, Watcher
from fedfew.studies.key import OUTCOME_VERSION
from fedfew.studies.options import Options
from fedfew.studies.plan import Cell, cells
from fedfew.studies.study import Study
from fedfew.studies.tuning import points
from fedfew.studies.workers import default_workers
from fedfew.training.from_settings import find_model, make_method
from fedfew.util.files import DamagedFileError

WRITE_EVERY = 20.0  # seconds between two updates of the tables while runs are going


@dataclass(frozen=True)
class Prepared:
    """A study whose runs are planned and looked up; nothing has been run or written yet."""

    study: Study
    options: Options
    root: Path
    cells: list[Cell]
    missing: dict[str, str]  # data sets that are not available, and how to get them
    done: dict[str, Cell]  # by key; a run is listed once, however many places it has in the study
    failed: dict[str, str]  # key → reason, of runs that will not be tried again
    new: dict[str, Cell]
    without_data: dict[str, Cell]
    workers: int
    damaged: dict[str, str] = field(default_factory=dict)  # key → reason, of results that cannot be read; also in ``new``
    pack: int = 1  # runs that a worker makes at a time, in one stack

    @property
    def folder(self) -> Path:
        return self.root / self.study.name

    @property
    def older(self) -> str | None:
        """What the tables show besides from before the study's file changed, in words; asked before the runs are made."""
        kept = planned_otherwise(self.folder, self.study.text, self.options.length, self.cells)
        if not kept:
            return None
        named = ", ".join(kept[:10]) + (", …" if len(kept) > 10 else "")
        return (
            f"The study's file has changed, and its tables still show what was planned before and is not planned now: {named}. "
            f"To leave that out, delete {self.folder / PLAN} and run the study again: finished runs are kept."
        )

    @property
    def protocol_changes(self) -> dict[str, list[str]]:
        """What the protocol changed, and in which columns."""
        changed: dict[str, dict[str, None]] = {}
        for cell in self.cells:
            for change in cell.changed:
                changed.setdefault(f"{cell.protocol}: {change}", {})[cell.column] = None
        return {change: list(columns) for change, columns in changed.items()}

    @cached_property
    def packed(self) -> set[str]:
        """The keys of new runs that share a stack with others."""
        packs = {key: packing.pack_of(cell.settings, bool(cell.candidates)) for key, cell in self.new.items()}
        return packing.packed(packs, self.pack)

    @property
    def packs(self) -> str | None:
        """How many of the new runs can share a stack, in words."""
        return packing.in_words(len(self.packed), self.pack)

    @cached_property
    def estimate(self) -> Estimate:
        found = estimate(self.root, {key: cell.settings for key, cell in self.new.items()}, self.workers, self.packed)
        runs = {key: 1 + len(cell.candidates) for key, cell in self.new.items()}  # a tuned run trains every candidate first
        return replace(found, seconds={key: s if s is None else runs[key] * s for key, s in found.seconds.items()})

    def run(
        self, watcher: Watcher, *, keep_models: bool = False, time_limit: float | None = runner.TIME_LIMIT
    ) -> tuple[Report, str | None]:
        """Make the new runs and keep the tables up to date; the report, and what the new plan replaced."""
        self._check_models()
        plan, dropped = write_plan(self.folder, self.study.text, self.options.length, self.cells, self.missing)
        writer = _TableWriter(self.root, self.folder, plan)
        jobs = [self._job(key, cell) for key, cell in self.new.items()]
        for key in self.damaged:
            RunFolder.of(self.root, key).set_aside_damaged_result()
        for job in jobs:
            (RunFolder.of(self.root, job.key).path / ERROR).unlink(missing_ok=True)
        report = runner.run(
            self.root,
            jobs,
            watcher,
            workers=self.workers,
            code=f"outcomes-{OUTCOME_VERSION}",
            log=self.folder / LOG,
            keep_models=keep_models,
            time_limit=time_limit,
            pack=self.pack,
            on_finished=writer.write_sometimes,
        )
        writer.write()
        return report, dropped

    def _job(self, key: str, cell: Cell) -> Job:
        values = tuple(points(cell.grid)) if cell.grid else ()
        return Job(key, cell.label, cell.settings, self.estimate.seconds[key] or 1.0, cell.candidates, values)

    def _check_models(self) -> None:
        """Import the models and methods of the user's own that the new runs name, so that errors are found before training."""
        named = {
            (cell.settings.model, cell.settings.method, str(cell.settings.method_settings)): cell for cell in self.new.values()
        }
        for cell in named.values():
            try:
                find_model(cell.settings.model)
                make_method(cell.settings)
            except (ValueError, ImportError) as error:
                raise self.study.error(f"columns → {cell.column} with rows → {cell.row}", error) from None


@dataclass
class _TableWriter:
    root: Path
    folder: Path
    plan: StoredPlan
    last: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def write_sometimes(self) -> None:
        if self.clock() - self.last >= WRITE_EVERY:
            self.write()

    def write(self) -> None:
        store.write(self.folder, store.collect(self.root, self.plan.cells, self.plan.missing))
        self.last = self.clock()


def prepare(
    study: Study, options: Options, root: Path, *, workers: int | None = None, retry_failed: bool = False, pack: int | None = None
) -> Prepared:
    """Plan a study and look up which of its runs exist. Nothing that the study names is imported.

    Raises ValueError where a setting makes no sense.
    """
    planned = cells(study, options)
    missing = availability.missing(cell.settings for cell in planned)
    done, failed, new, without, damaged = {}, {}, {}, {}, {}
    for key, cell in {cell.key: cell for cell in planned}.items():
        folder = RunFolder.of(root, key)
        try:
            finished = store.readable_result(folder) is not None
        except DamagedFileError as error:
            finished, damaged[key] = False, str(error)
        if finished:
            done[key] = cell
        elif cell.settings.dataset in missing:
            without[key] = cell
        elif not retry_failed and (error_file := folder.error) is not None:
            failed[key] = error_file["message"]
        else:
            new[key] = cell
    damaged = {key: reason for key, reason in damaged.items() if key in new}
    if workers is None:
        workers = min(default_workers(cell.settings.device) for cell in planned)
    if pack is None:
        pack = min(packing.default_size(cell.settings.device) for cell in planned)
    workers = min(workers, max(1, len(new)))
    return Prepared(study, options, root, planned, missing, done, failed, new, without, workers, damaged, pack)


def collect_results(root: Path, name: str) -> tuple[store.Results, StoredPlan]:
    """The results of a study that was run before, as they are now."""
    plan = StoredPlan.read(root / name)
    if plan is None:
        advice = "'fedfew study run' does that, and --folder names another folder"
        raise ValueError(f"the study {name} has not been run in {root}: {advice}")
    results = store.collect(root, plan.cells, plan.missing)
    store.write(root / name, results)
    return results, plan
