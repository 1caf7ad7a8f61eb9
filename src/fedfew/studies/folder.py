"""Where things lie: ``runs/<key>/`` for every run, shared by all studies, and ``<study>/`` for what a study makes of them.

In a run's folder: training checkpoints while it is going, ``attempts.jsonl`` (a line for each time it was taken up), and at
the end ``result.json`` or ``error.json``, each there whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfew.studies.plan import Cell

DEFAULT = Path("studies")
PLAN, STUDY, LOG = "plan.json", "study.yaml", "workers.log"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def of(cls, root: Path, key: str) -> RunFolder:
        return cls(root / "runs" / key)

    @property
    def result(self) -> dict[str, Any] | None:
        """What the finished run left behind: ``run``, ``clients``, ``rounds``."""
        return read_json(self.path / "result.json")

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @property
    def error(self) -> dict[str, Any] | None:
        """Why the run failed, where it did."""
        return read_json(self.path / "error.json")

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Each time the run was taken up, oldest first."""
        try:
            lines = (self.path / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]  # a killed process may leave half a line

    def note_attempt(self, **values: Any) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "attempts.jsonl", "a", encoding="utf-8") as file:
            file.write("\n" * self._half_a_line() + json.dumps(values) + "\n")

    def _half_a_line(self) -> bool:
        try:
            written = (self.path / "attempts.jsonl").read_bytes()
        except FileNotFoundError:
            return False
        return written != b"" and not written.endswith(b"\n")

    def finish(self, result: dict[str, Any], keep_models: bool) -> None:
        write_json(self.path / "result.json", result)
        (self.path / "error.json").unlink(missing_ok=True)
        if not keep_models:
            self.drop_checkpoints()

    def fail(self, message: str, kind: str, trace: str = "") -> None:
        write_json(self.path / "error.json", {"message": message, "kind": kind, "when": now(), "trace": trace})

    def drop_checkpoints(self) -> None:
        for place in [*self.path.glob("round-*"), *self.path.glob(".partial-*")]:
            shutil.rmtree(place, ignore_errors=True)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class StoredPlan:
    """What a study's folder is about."""

    length: str  # "scale 0.05": what all of its runs have in common
    cells: list[dict[str, Any]]
    missing: dict[str, str]  # by data set, why it is not here

    @classmethod
    def read(cls, folder: Path) -> StoredPlan | None:
        """That of the study in a folder; None where it has never been run."""
        found = read_json(folder / PLAN)
        return None if found is None else cls(**found)


def write_plan(folder: Path, text: str, length: str, cells: list[Cell], missing: dict[str, str]) -> tuple[StoredPlan, str | None]:
    """Keep what is planned beside what was planned before; all of it, and the length of what had to make way.

    A study may be run piece by piece (--only); its tables show all pieces. They do not show runs of two lengths side by side, so
    a plan of another scale or sample takes the place of the old one. The runs themselves stay where they are.
    """
    planned = [_listed(cell) for cell in cells]
    before = StoredPlan.read(folder)
    dropped = before.length if before is not None and before.length != length else None
    if dropped is not None:
        before = None
    places = {_place(entry) for entry in planned}
    kept = [entry for entry in before.cells if _place(entry) not in places] if before else []
    plan = StoredPlan(length, kept + planned, (before.missing if before else {}) | missing)
    write_text(folder / STUDY, text)
    write_json(folder / PLAN, asdict(plan))
    return plan, dropped


def _listed(cell: Cell) -> dict[str, Any]:
    place = {name: getattr(cell, name) for name in ("study", "protocol", "column", "row", "point", "seed", "key")}
    return place | {"settings": asdict(cell.settings)}


def _place(entry: dict[str, Any]) -> str:
    return json.dumps([entry[name] for name in ("protocol", "column", "row", "point", "seed")], sort_keys=True)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and the run is made anew") from None
    return read


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, allow_nan=False))


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
