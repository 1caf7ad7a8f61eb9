"""Locating a data set: in the user's data folder, under a path, or on the hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from fedfew.data import cache, hub
from fedfew.data.errors import DataError
from fedfew.data.raw import CLIENT, ColumnChoice, RawData
from fedfew.data.readers import arrow_tables, idx, image_folder, npz, parquet, saved_dataset, table_file
from fedfew.data.sources import SOURCES, Source, names
from fedfew.util.spelling import unknown

HUB_PREFIX = "hub:"


@dataclass(frozen=True)
class Found:
    """A data set that can be read; ``key`` changes whenever its files do."""

    name: str
    key: str
    read: Callable[[], RawData]
    source: Source | None = None
    cached: bool = True  # decoding takes longer than reading the cache
    from_hub: bool = False
    client: str | None = None  # the column of clients, if the data has an obvious one


def data_folder(data_dir: str | Path | None) -> Path | None:
    """The folder that is searched before any network: the one given, else ``$FEDFEW_DATA``."""
    given = data_dir or os.environ.get("FEDFEW_DATA")
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist ({'data_dir' if data_dir else 'FEDFEW_DATA'})")
    return folder


def find(name_or_path: str | Path, data_dir: str | Path | None, choice: ColumnChoice, settings: dict[str, object]) -> Found:
    """A data set by name, path, or ``hub:owner/name``. settings: whatever else changes the decoded result."""
    text = str(name_or_path)
    if text in SOURCES:
        return _named(SOURCES[text], data_folder(data_dir), choice, settings)
    if text.startswith(HUB_PREFIX):
        return _on_hub(text[len(HUB_PREFIX) :], None, choice, settings)
    path = Path(text).expanduser()
    if path.exists():
        return _at(path, path.stem if path.is_file() else path.resolve().name, choice, settings)
    if path.suffix or len(path.parts) > 1:
        raise DataError(f"there is no file or folder {text} (and no data set of that name: {', '.join(names())})")
    raise unknown("data set or path", text, names())


def _named(source: Source, folder: Path | None, choice: ColumnChoice, settings: dict[str, object]) -> Found:
    chosen = replace(choice, input=choice.input or source.input, label=choice.label or source.label)
    if folder is not None:
        own = [folder] if folder.name in source.folder_names else []
        for place in [*(folder / name for name in source.folder_names), *own]:
            if place.is_dir() and _holds(source, place):
                return _at(place, source.name, chosen, settings, source)
    if source.hub is None:
        raise nowhere(source, folder, "it is not on the hub")
    return _on_hub(source.hub, source, chosen, settings, folder)


def _holds(source: Source, folder: Path) -> bool:
    if _parquet_files(folder):
        return True
    return source.kind == "image" and bool(idx.image_files(folder) or image_folder.image_files(folder))


def _on_hub(
    hub_id: str, source: Source | None, choice: ColumnChoice, settings: dict[str, object], folder: Path | None = None
) -> Found:
    def read() -> RawData:
        try:
            tables = hub.fetch(hub_id)
        except hub.UnreachableError as error:
            if source is None:
                raise DataError(f"the data set {hub_id} could not be loaded: {error}") from error
            raise nowhere(source, folder, str(error)) from error
        return arrow_tables.from_tables(tables, choice)

    key = cache.hash_of({"format": cache.FORMAT, "hub": hub_id, "columns": asdict(choice), "settings": settings})
    return Found(source.name if source else hub_id, key, read, source, from_hub=True)


def nowhere(source: Source, folder: Path | None, reason: str) -> DataError:
    """An error that names the places searched, and how to get the data set."""
    looked = f"not in {folder} (searched for {', '.join(source.folder_names)})" if folder else "no data folder was given"
    shapes = source.input if source.kind == "text" else f"{source.input} (image)"
    return DataError(
        f"{source.name}: {looked}, and {reason}. Expected: {source.files}, with columns {shapes} and {source.label[0]}, "
        f"from {source.address}, about {source.megabytes:,} MB. Put them into <folder>/{source.name} and pass "
        "data_dir=<folder> (--data-dir) or set FEDFEW_DATA"
    )


def _at(path: Path, name: str, choice: ColumnChoice, settings: dict[str, object], source: Source | None = None) -> Found:
    """The data at a path: a file by its ending, a folder by its contents."""
    client, images = None, tuple[str, ...]()
    read: Callable[[], RawData]
    if path.suffix.lower() in table_file.TEXT_SUFFIXES and path.is_file():
        table, notes = table_file.read_table(path, choice.excluded.__contains__)
        rows = arrow_tables.from_tables([arrow_tables.TablePart(path.name, table, path.parent)], choice, notes)
        files, images, read = [path], rows.image_files, lambda: rows  # images that have changed are read again
    elif not path.is_dir():
        files, read = [path], _file_reader(path, choice)
    elif files := _parquet_files(path):
        read = partial(arrow_tables.from_files, files, parquet.read_table, choice)
    elif files := saved_dataset.files(path):
        read = partial(arrow_tables.from_files, files, saved_dataset.read_table, choice)
    elif files := idx.image_files(path):
        if source is None:
            choice.refuse(f"the idx files in {path} have")
        read = partial(idx.read, files)
    elif files := image_folder.image_files(path):
        if source is None:
            choice.refuse(f"the images in {path} have", label=False)
        own = choice if source is None else ColumnChoice(label=("outer",))  # named sets have one folder per class
        read = partial(image_folder.read, path, files, own)
        client = CLIENT if CLIENT in read().columns else None  # names only; the images are read later
    else:
        pfllib = "; files of PFLlib (train/0.npz) are read as docs/data.md says" if (path / "train" / "0.npz").exists() else ""
        raise DataError(
            f"the folder {path} holds neither parquet files, nor what save_to_disk of Hugging Face's datasets writes, nor idx "
            f"files, nor images in class folders{pfllib}"
        )
    root = path if path.is_dir() else path.parent
    named = [(str(file.relative_to(root)), file) for file in files] + [(name, root / name) for name in images]
    key = cache.source_key([(name, file) for name, file in named if file.is_file()], {"columns": asdict(choice), **settings})
    cached = path.suffix.lower() != ".npz" and not idx.is_idx(files[0])
    return Found(name, key, read, source, cached, client=client)


def _file_reader(path: Path, choice: ColumnChoice) -> Callable[[], RawData]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return partial(arrow_tables.from_files, [path], parquet.read_table, choice)
    if suffix == ".npz":
        return partial(npz.read, path, choice)
    if idx.is_idx(path):
        choice.refuse(f"{path} has")
        return partial(idx.read, [path])
    raise DataError(
        f"{path}: files ending in {suffix or 'nothing'} cannot be read; .parquet, .csv, .tsv, .jsonl, .npz, .fed, idx "
        "files (MNIST) and folders can. Save it as one of these; in Python a data frame can be given as well"
    )


def _parquet_files(folder: Path) -> list[Path]:
    files = [p for p in folder.rglob("*.parquet") if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    return arrow_tables.split_order(files)
