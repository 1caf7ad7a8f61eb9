"""The page of a run, from its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedfew.report.page.document import of_run
from fedfew.report.page.record import SideFiles, newest
from fedfew.training import confusion
from fedfew.training.resolve import read_file
from fedfew.training.run_files import CONFIG, about_data, costs, final_scores, labels

T = TypeVar("T")


def of_folder(folder: Path) -> dict[str, Any]:
    """What the page of the run in a folder shows. Damaged files beside its checkpoints are left out, and named among the events.

    Raises CheckpointError where there is no checkpoint that can be read.
    """
    with newest(folder) as record:
        files, damaged = side_files(folder, record.round)
        try:
            document = of_run(record, files)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            # Well-formed, but not what a run writes there: without them the page can still show the checkpoint.
            damaged.append(f"the files beside the checkpoints in {folder} do not fit the run ({error!r})")
            document = of_run(record, SideFiles(name=files.name))
    events = document["events"]
    events["newest"] = [*events["newest"], *(f"{reason}; left out here" for reason in damaged)]
    events["all"] += len(damaged)
    return document


def side_files(folder: Path, round: int) -> tuple[SideFiles, list[str]]:
    """All of them, of a run that has come so far; and which of them are damaged, and so left out."""
    damaged: list[str] = []

    def readable(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (ValueError, OSError) as error:
            damaged.append(str(error))
            return otherwise

    found = SideFiles(
        name=folder.resolve().name,
        about=readable(lambda: about_data(folder), {}),
        labels=readable(lambda: labels(folder), None),
        confusion=readable(lambda: confusion.read(folder, round), None),
        final=readable(lambda: final_scores(folder, round), {}),
        config=readable(lambda: read_file(folder / CONFIG) if (folder / CONFIG).exists() else {}, {}),
        costs=readable(lambda: costs(folder), {}),
    )
    return found, damaged
