"""Files of studies: ``runs/<key>/`` for every run, shared by all studies, and ``<study>/`` for the results of one study.

The folder of a run holds training checkpoints while it is going, ``attempts.jsonl`` (one line per start and end of an attempt),
and at the end ``result.json`` or ``error.json``, each written whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.util.files import DamagedFileError, read_json, remove_unfinished, write_atomically

if TYPE_CHECKING:
    from fedfew.studies.plan import Cell

DEFAULT = Path("studies")
PLAN, STUDY, LOG, RESULTS = "plan.json", "study.yaml", "workers.log", "runs.parquet"
RESULT, ERROR, ATTEMPTS = "result.json", "error.json", "attempts.jsonl"


def is_study(folder: Path) -> bool:
    return (folder / RESULTS).exists() or (folder / STUDY).exists()


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def of(cls, root: Path, key: str) -> RunFolder:
        return cls(root / "runs" / key)

    @property
    def result(self) -> dict[str, Any] | None:
        """The finished run's ``run``, ``clients`` and ``rounds``; None where it is not finished. Raises DamagedFileError."""
        found = read_json(self.path / RESULT)
        kinds = {"run": dict, "clients": list, "rounds": list}
        if found is not None and not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
            raise DamagedFileError(f"{self.path / RESULT} is damaged: it must hold {', '.join(kinds)}")
        return found

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).exists()

    @property
    def error(self) -> dict[str, Any] | None:
        """Why the run failed, where it did: ``message``, ``kind``, ``when``, ``trace``. None for a damaged file."""
        try:
            found = read_json(self.path / ERROR)
        except DamagedFileError:
            return None
        return found if found is not None and isinstance(found.get("message"), str) else None

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Starts and ends of attempts, oldest first."""
        try:
            lines = (self.path / ATTEMPTS).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        return [attempt for line in lines if (attempt := _attempt(line)) is not None]

    def record_attempt(self, **values: Any) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ATTEMPTS, "a", encoding="utf-8") as file:
            file.write("\n" * self._ends_within_a_line() + json.dumps(values) + "\n")

    def _ends_within_a_line(self) -> bool:
        try:
            written = (self.path / ATTEMPTS).read_bytes()
        except FileNotFoundError:
            return False
        return written != b"" and not written.endswith(b"\n")

    def finish(self, result: dict[str, Any], keep_models: bool) -> None:
        write_json(self.path / RESULT, result)
        (self.path / ERROR).unlink(missing_ok=True)
        if not keep_models:
            self.drop_checkpoints()

    def fail(self, message: str, kind: str, trace: str = "") -> None:
        write_json(self.path / ERROR, {"message": message, "kind": kind, "when": now(), "trace": trace})

    def set_aside_damaged_result(self) -> None:
        """Rename a result that cannot be read, so that the run is made again and nothing is lost."""
        os.replace(self.path / RESULT, self.path / f"damaged-{RESULT}")

    @property
    def score(self) -> tuple[float | None, float | None] | None:
        """Of a candidate that was trained to tune a run: accuracy and loss on validation samples; None where not yet known."""
        try:
            found = read_json(self.path / "score.json")
        except DamagedFileError:
            return None
        return None if found is None else (found.get("served_accuracy"), found.get("served_loss"))

    def finish_candidate(self, accuracy: float | None, loss: float | None) -> None:
        write_json(self.path / "score.json", {"served_accuracy": accuracy, "served_loss": loss})
        self.drop_checkpoints()

    def drop_checkpoints(self) -> None:
        for checkpoint in self.path.glob("round-*"):
            shutil.rmtree(checkpoint, ignore_errors=True)
        remove_unfinished(self.path)


def _attempt(line: str) -> dict[str, Any] | None:
    """One line of attempts; None for half a line, which a killed process leaves, and for anything else."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(found, dict) and {"event", "when", "pid"} <= found.keys()
    return found if whole and isinstance(found.get("seconds", 0.0), int | float) else None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class StoredPlan:
    """The planned runs of a study, as stored in its folder."""

    length: str  # "scale 0.05": what all of its runs have in common
    cells: list[dict[str, Any]]
    missing: dict[str, str]  # by data set, why it is not available

    @classmethod
    def read(cls, folder: Path) -> StoredPlan | None:
        """The plan of the study in a folder; None where it has never been run. Raises DamagedFileError."""
        found = read_json(folder / PLAN)
        try:
            return None if found is None else cls(**found)
        except TypeError as error:
            raise DamagedFileError(f"{folder / PLAN} is damaged ({error})") from None


def write_plan(folder: Path, text: str, length: str, cells: list[Cell], missing: dict[str, str]) -> tuple[StoredPlan, str | None]:
    """Add the planned runs to those planned before; all of them, and what was dropped ("scale 0.05"; None: nothing).

    A study may be run piece by piece (--only), and its tables show all pieces. They never mix runs of two lengths, so a plan of
    another scale or sample replaces the old one. The runs themselves are kept.
    """
    planned = [_entry(cell) for cell in cells]
    dropped = None
    try:
        before = StoredPlan.read(folder)
    except DamagedFileError:
        before, dropped = None, f"the damaged file {PLAN}"
    if before is not None and before.length != length:
        dropped, before = before.length, None
    places = {_place(entry) for entry in planned}
    kept = [entry for entry in before.cells if _place(entry) not in places] if before else []
    plan = StoredPlan(length, kept + planned, (before.missing if before else {}) | missing)
    write_text(folder / STUDY, text)
    write_json(folder / PLAN, asdict(plan))
    return plan, dropped


def planned_otherwise(folder: Path, text: str, length: str, cells: list[Cell]) -> list[str]:
    """Columns and rows whose runs stay in the tables although the study's file has changed since they were planned."""
    stored = folder / STUDY
    if not stored.exists() or stored.read_text(encoding="utf-8") == text:
        return []
    try:
        before = StoredPlan.read(folder)
    except DamagedFileError:
        return []
    if before is None or before.length != length:
        return []
    places = {_place(_entry(cell)) for cell in cells}
    kept = [entry for entry in before.cells if _place(entry) not in places]
    return list(dict.fromkeys(f"{entry['column']} / {entry['row']}" for entry in kept))


def _entry(cell: Cell) -> dict[str, Any]:
    place = {name: getattr(cell, name) for name in ("study", "protocol", "column", "row", "point", "seed", "key")}
    return place | {"settings": asdict(cell.settings)}


def _place(entry: dict[str, Any]) -> str:
    return json.dumps([entry[name] for name in ("protocol", "column", "row", "point", "seed")], sort_keys=True)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, allow_nan=False))


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
