"""Where a data set lies: in the user's data folder, under a path, or on the hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedfew.data import cache, hub, readers
from fedfew.data.errors import DataError
from fedfew.data.readers import Columns, Raw
from fedfew.data.sources import SOURCES, Source, names
from fedfew.util.spelling import unknown

HUB_PREFIX = "hub:"


@dataclass(frozen=True)
class Found:
    """A data set that can be read: ``key`` changes whenever its files do."""

    name: str
    key: str
    read: Callable[[], Raw]
    source: Source | None = None
    worth_keeping: bool = True  # decoding takes longer than reading
    from_hub: bool = False


def data_folder(data_dir: str | Path | None) -> Path | None:
    """The folder looked at before any network: the one given, else ``$FEDFEW_DATA``."""
    given = data_dir or os.environ.get("FEDFEW_DATA")
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist ({'data_dir' if data_dir else 'FEDFEW_DATA'})")
    return folder


def find(name_or_path: str | Path, data_dir: str | Path | None, columns: Columns, settings: dict[str, object]) -> Found:
    """A data set by name, path, or ``hub:owner/name``. settings: all else that decides what decoding gives."""
    text = str(name_or_path)
    if text in SOURCES:
        return _named(SOURCES[text], data_folder(data_dir), columns, settings)
    if text.startswith(HUB_PREFIX):
        return _on_hub(text[len(HUB_PREFIX) :], None, columns, settings)
    path = Path(text).expanduser()
    if path.exists():
        return _at(path, path.stem if path.is_file() else path.resolve().name, columns, settings)
    if path.suffix or len(path.parts) > 1:
        raise DataError(f"there is no file or folder {text} (and no data set of that name; there is: {', '.join(names())})")
    raise unknown("data set or path", text, names())


def _named(source: Source, folder: Path | None, columns: Columns, settings: dict[str, object]) -> Found:
    chosen = Columns(columns.input or source.input, columns.label or source.label, columns.apart)
    if folder is not None:
        own = [folder] if folder.name in source.folder_names else []
        for place in [*(folder / name for name in source.folder_names), *own]:
            if place.is_dir() and (_parquet_files(place) or (source.kind == "image" and readers.image_files(place))):
                return _at(place, source.name, chosen, settings, source)
    if source.hub is None:
        raise nowhere(source, folder, "it is not on the hub")
    return _on_hub(source.hub, source, chosen, settings, folder)


def _on_hub(
    hub_id: str, source: Source | None, columns: Columns, settings: dict[str, object], folder: Path | None = None
) -> Found:
    def read() -> Raw:
        try:
            tables = hub.fetch(hub_id)
        except hub.UnreachableError as error:
            if source is None:
                raise DataError(f"the data set {hub_id} could not be had: {error}") from error
            raise nowhere(source, folder, str(error)) from error
        return readers.from_tables(tables, columns)

    key = cache.hash_of({"format": cache.FORMAT, "hub": hub_id, "columns": _listed(columns), "settings": settings})
    return Found(source.name if source else hub_id, key, read, source, from_hub=True)


def nowhere(source: Source, folder: Path | None, reason: str) -> DataError:
    """An error saying where a data set was looked for, and how to get it."""
    looked = f"not in {folder} (looked for {', '.join(source.folder_names)})" if folder else "looked for in no data folder"
    shapes = source.input if source.kind == "text" else f"{source.input} (image)"
    return DataError(
        f"{source.name}: {looked}, and {reason}. Expected: {source.files}, with columns {shapes} and {source.label[0]}, "
        f"from {source.address}, about {source.megabytes:,} MB. Put them into <folder>/{source.name} and pass "
        "data_dir=<folder> (--data-dir) or set FEDFEW_DATA"
    )


def _at(path: Path, name: str, columns: Columns, settings: dict[str, object], source: Source | None = None) -> Found:
    """What lies at a path: a file by its ending, a folder by what is in it."""
    read: Callable[[], Raw]
    worth_keeping = True
    if path.is_dir():
        files = _parquet_files(path)
        if files:
            read = lambda: readers.read_parquet(files, columns)  # noqa: E731 (one of several, chosen here)
        else:
            files = readers.image_files(path)
            if not files:
                raise DataError(f"the folder {path} holds neither parquet files nor images in class folders")
            read = lambda: readers.read_image_folder(path, files)  # noqa: E731
    else:
        files = [path]
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            read = lambda: readers.read_parquet(files, columns)  # noqa: E731
        elif suffix in (".csv", ".tsv"):
            read = lambda: readers.read_csv(path, columns)  # noqa: E731
        elif suffix == ".npz":
            read, worth_keeping = (lambda: readers.read_npz(path, columns)), False
        else:
            raise DataError(
                f"{path}: {suffix or 'a file without ending'} is not read; .parquet, .csv, .tsv, .npz, .fed or a folder are"
            )
    root = path if path.is_dir() else path.parent
    listed = [(str(file.relative_to(root)), file) for file in files]
    key = cache.source_key(listed, {"columns": _listed(columns), **settings})
    return Found(name, key, read, source, worth_keeping)


def _parquet_files(folder: Path) -> list[Path]:
    files = [p for p in folder.rglob("*.parquet") if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    return readers.split_order(files)


def _listed(columns: Columns) -> list[object]:
    return [columns.input, columns.label, sorted(columns.apart)]
