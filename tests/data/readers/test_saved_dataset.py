"""Folders of Hugging Face's ``save_to_disk``, written here without its library."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from fedfew.data import load
from fedfew.data.errors import DataError
from fedfew.data.readers import saved_dataset


def written(folder: Path, rows: int, shift: int = 0) -> Path:
    names = {"info": {"features": {"outcome": {"names": ["well", "ill"], "_type": "ClassLabel"}}}}
    values = [float(i + shift) / 7 for i in range(rows)]
    columns = {"age": values, "outcome": [i % 2 for i in range(rows)], "site": [f"s{i % 4 // 2}" for i in range(rows)]}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(names)})
    folder.mkdir(parents=True)
    path = folder / "data-00000-of-00001.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=5)
    (folder / "state.json").write_text("{}")
    return path


def test_one_split(tmp_path: Path) -> None:
    written(tmp_path / "saved", 24)
    federation = load(tmp_path / "saved", label="outcome", client="site")
    assert (federation.class_names, federation.client_names, federation.shape) == (("well", "ill"), ("s0", "s1"), (1,))
    assert [int(split.count.sum()) for split in (federation.train, federation.test)] == [18, 6]


def test_splits_are_folders(tmp_path: Path) -> None:
    written(tmp_path / "saved" / "test", 8, shift=100)
    written(tmp_path / "saved" / "train", 24)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    federation = load(tmp_path / "saved", label="outcome", client="site", scale="none")
    assert [int(split.count.sum()) for split in (federation.train, federation.test)] == [24, 8]
    assert float(federation.test.x.min()) == pytest.approx(100 / 7)


def test_what_is_damaged_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "saved", 24)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow cannot be read as an Arrow stream"):
        load(tmp_path / "saved", label="outcome", client="site")
    monkeypatch.setenv("FEDFEW_MAX_DATA_GIB", "0.0000001")
    with pytest.raises(DataError, match="more than the"):
        saved_dataset.read_table(written(tmp_path / "large", 24))
