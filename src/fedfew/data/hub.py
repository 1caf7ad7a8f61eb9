"""Data sets from the Hugging Face hub, through ``datasets`` (an optional extra: ``pip install 'fedfew[hub]'``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fedfew.data.raw import SPLITS
from fedfew.data.readers.arrow_tables import TablePart

if TYPE_CHECKING:
    import pyarrow as pa


class UnreachableError(Exception):
    """Why the hub could not be used."""


def fetch(hub_id: str) -> list[TablePart]:
    """All splits of a data set as Arrow tables, training first, images still encoded. ``datasets`` shows progress."""
    try:
        import datasets
    except ImportError as error:
        raise UnreachableError("the package datasets is not installed: pip install 'fedfew[hub]'") from error
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
