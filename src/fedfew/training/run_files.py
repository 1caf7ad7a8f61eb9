"""The files beside the checkpoints in the folder of a run: their names, and their contents. Any of them may be missing."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.util.files import DamagedFileError, read_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIG, ABOUT_DATA, FINAL_SCORES = "config.yaml", "federation.json", "scores.json"
LABELS, COSTS, PROGRESS, CONFUSION = "labels.npz", "costs.json", "progress.json", "confusion.npz"


def about_data(folder: Path) -> dict[str, Any]:
    """Samples and true groups of the clients, names of classes; empty for a run that was saved from Python."""
    return read_json(folder / ABOUT_DATA) or {}


def final_scores(folder: Path, round: int) -> dict[str, Any]:
    """Scores per client, computed once when the run ended; empty where the run went on since, or was saved from Python."""
    found = read_json(folder / FINAL_SCORES) or {}
    return found if found.pop("round", None) == round else {}


def costs(folder: Path) -> dict[str, Any]:
    """What a round costs: the fields of :class:`fedfew.evaluation.costs.Cost`."""
    return read_json(folder / COSTS) or {}


def labels(folder: Path) -> NDArray[np.uint32] | None:
    """How many training samples of each label every client has, ``[M, classes]``; None for a run that has none."""
    import numpy as np

    path = folder / LABELS
    try:
        with np.load(path, allow_pickle=False) as file:
            counts: NDArray[np.uint32] = file["train"]
            return counts
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from None


def progress(folder: Path) -> dict[str, Any]:
    """How far the run is, and ``age``: how many seconds ago that was written. Empty where nothing can be read."""
    path = folder / PROGRESS
    try:
        found = read_json(path) or {}
        age = max(0.0, time.time() - path.stat().st_mtime)
    except (DamagedFileError, OSError):
        return {}
    whole = isinstance(found.get("state"), str) and all(isinstance(found.get(name), int) for name in ("round", "rounds"))
    scores = all(found.get(name) is None or isinstance(found[name], int | float) for name in ("served", "adapted"))
    return found | {"age": age} if whole and scores else {}
