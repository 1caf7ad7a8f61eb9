"""Data sets from the Hugging Face hub, through ``datasets`` (the optional extra ``hub``)."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import getproxies

from fedfew.data.raw import SPLITS
from fedfew.data.readers.arrow_tables import TablePart
from fedfew.util.extras import install_command

if TYPE_CHECKING:
    import pyarrow as pa


TIMEOUT = 1.0  # seconds for the hub to answer
NO_ANSWER = "the hub does not answer from here"


class UnreachableError(Exception):
    """Why the hub could not be used."""


def unreachable(hub_id: str) -> str | None:
    """Why a data set cannot be downloaded; None if it probably can, or if it is in the cache of ``datasets``."""
    if not installed("datasets"):
        return f"the package datasets is not installed: {install_command('hub')}"
    if _cached(hub_id):
        return None
    if _offline():
        return "HF_HUB_OFFLINE forbids asking the hub"
    return None if answers() else NO_ANSWER


def unreachable_model(hub_id: str) -> str | None:
    """Why a model or tokeniser cannot be downloaded; None if it probably can, or if it is in the cache of ``huggingface_hub``."""
    cache = Path(os.environ.get("HF_HUB_CACHE") or _home() / "hub")
    if (cache / f"models--{hub_id.replace('/', '--')}").is_dir():
        return None
    if _offline():
        return "HF_HUB_OFFLINE forbids asking the hub"
    return None if answers() else NO_ANSWER


def answers() -> bool:
    """Whether the hub accepts connections; assumed if there is a proxy, which may reach what this machine cannot."""
    if getproxies().get("https"):
        return True
    return _accepts_connections(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


@cache
def _accepts_connections(address: str) -> bool:
    parts = urlparse(address)
    accepted = threading.Event()

    def ask() -> None:
        try:
            with socket.create_connection((parts.hostname or address, parts.port or 443), timeout=TIMEOUT):
                accepted.set()
        except OSError:
            pass

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name takes no timeout: many seconds without a network
    asking.start()
    asking.join(TIMEOUT)
    return accepted.is_set()


def installed(package: str) -> bool:
    """Found without importing it, which may take seconds."""
    loaded = sys.modules.get(package, ...)
    return find_spec(package) is not None if loaded is ... else loaded is not None


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _home() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")


def _cached(hub_id: str) -> bool:
    return (Path(os.environ.get("HF_DATASETS_CACHE") or _home() / "datasets") / hub_id.replace("/", "___")).is_dir()


def fetch(hub_id: str) -> list[TablePart]:
    """All splits of a data set as Arrow tables, training first, images still encoded. ``datasets`` shows progress."""
    if not installed("datasets"):
        raise UnreachableError(f"the package datasets is not installed: {install_command('hub')}")
    if not _offline() and not _cached(hub_id) and not answers():  # the library would retry for half a minute
        raise UnreachableError(NO_ANSWER)
    import datasets  # takes seconds

    try:
        found: Any = datasets.load_dataset(hub_id)
    except Exception as error:  # network, hub and library raise many kinds; the reason is passed on
        raise UnreachableError(f"the hub gave an error: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    order = sorted(found, key=lambda split: (SPLITS.index(split) if split in SPLITS else len(SPLITS), split))
    return [TablePart(f"{hub_id}, split {split}", table_of(found[split]), split=split) for split in order]


def table_of(split: Any) -> pa.Table:
    """A split as an Arrow table, with its class names in the metadata."""
    table = split.with_format("arrow")[:]
    names = {name: {"names": list(f.names)} for name, f in split.features.items() if getattr(f, "names", None)}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": names}})})
