"""Which data sets are available, checked before anything runs: a run without data is missing, not failed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

from fedfew.data import DataError
from fedfew.training.settings import Settings

TIMEOUT = 3.0  # seconds for the hub to answer


def missing(runs: Iterable[Settings]) -> dict[str, str]:
    """By data set, why it is not available and how to get it; nothing for those that are."""
    why: dict[str, str] = {}
    for dataset, data_dir, partition in dict.fromkeys((s.dataset, s.data_dir, s.partition) for s in runs):
        try:
            _check(dataset, data_dir, partition)
        except (DataError, ValueError) as error:
            why[dataset] = str(error)
    return why


def _check(dataset: str, data_dir: str | None, partition: str | None) -> None:
    """Raise DataError where the data set is neither on this machine nor to be had from the hub."""
    from fedfew.data import cache as decoded
    from fedfew.data.finding import HUB_PREFIX, data_folder, find, nowhere
    from fedfew.data.prepared import is_prepared
    from fedfew.data.raw import ColumnChoice
    from fedfew.data.sources import SOURCES

    if dataset == "digits" or is_prepared(dataset):
        if dataset != "digits" and not Path(dataset).expanduser().is_file():
            raise DataError(f"there is no prepared federation {dataset}")
        return
    how, _, column = (partition or "").partition("+")[0].partition(":")
    found = find(dataset, data_dir, ColumnChoice(excluded=(column,) if how == "by" else ()), {"size": None})
    if not found.from_hub or decoded.stored_at(found.key, found.name).is_file():
        return
    source = SOURCES.get(dataset)
    hub_id = source.hub if source is not None and source.hub else dataset.removeprefix(HUB_PREFIX)
    reason = _unreachable(hub_id)
    if reason is None:
        return
    if source is None:
        raise DataError(f"{dataset}: {reason}")
    raise nowhere(source, data_folder(data_dir), reason)


def _unreachable(hub_id: str) -> str | None:
    """Why a data set cannot be downloaded; None where it probably can, or where the hub's own cache has it."""
    if find_spec("datasets") is None:
        return "the package datasets is not installed: pip install 'fedfew[hub]'"
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    kept = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    if (kept / hub_id.replace("/", "___")).is_dir():
        return None
    if os.environ.get("HF_HUB_OFFLINE") in ("1", "true", "TRUE", "yes"):
        return "HF_HUB_OFFLINE forbids asking the hub"
    return None if _answers(os.environ.get("HF_ENDPOINT") or "https://huggingface.co") else "the hub does not answer from here"


@cache
def _answers(address: str) -> bool:
    parts = urlparse(address)
    try:
        with socket.create_connection((parts.hostname or address, parts.port or 443), timeout=TIMEOUT):
            return True
    except OSError:
        return False
