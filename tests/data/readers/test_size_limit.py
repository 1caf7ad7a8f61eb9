"""Files that would fill the memory are refused before anything is allocated."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedfew
from fedfew.data import new_data
from fedfew.data.errors import DataError
from fedfew.data.readers import npz
from fedfew.data.readers.size_limit import VARIABLE, check_size

SMALL = "0.001"  # GiB: about a megabyte


def compressed_zeros(path: Path) -> None:
    np.savez_compressed(path, x=np.zeros((60, 10_000), np.float32), y=np.arange(60) % 2)


def equal_rows(path: Path) -> None:
    pq.write_table(pa.table({"a": np.zeros(400_000), "label": ["x"] * 400_000}), path)


def long_csv(path: Path) -> None:
    path.write_text("a,label\n" + "1.5,x\n2.5,y\n" * 100_000)


@pytest.mark.parametrize(("write", "name"), [(compressed_zeros, "x.npz"), (equal_rows, "x.parquet"), (long_csv, "x.csv")])
def test_a_file_beyond_the_limit_is_refused_and_the_limit_can_be_raised(write, name, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / name
    write(path)
    if name != "x.csv":
        assert path.stat().st_size < 50_000
    monkeypatch.setenv(VARIABLE, SMALL)
    refused = rf"{name} takes 0\.00 GiB in memory, more than the 0\.001 GiB that are read from one file.*{VARIABLE}"
    with pytest.raises(DataError, match=refused):
        fedfew.data.load(path, clients=2, partition="iid")
    with pytest.raises(DataError, match=refused):
        new_data.read(path, "table", ["a"])
    monkeypatch.setenv(VARIABLE, "0.1")
    assert len(new_data.read(path, "table", ["a"])) in (60, 200_000, 400_000)


def member(shape: str, contents: bytes = b"") -> bytes:
    """An array in numpy's format whose header says what it likes."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + contents


def archive(path: Path, contents: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", contents)
        labels = io.BytesIO()
        np.save(labels, np.zeros(2, np.int64))
        file.writestr("y.npy", labels.getvalue())
    return path


def test_a_header_that_announces_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.npz", member(f"({2**40},)"))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"takes 8,192\.00 GiB in memory, more than the 8 GiB"):
        npz.load(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("shape", ["(((((", "'a'", "(2, -3)", "(1e3,)", "("])
def test_a_header_that_cannot_be_read_is_refused(shape: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read as \.npz of plain arrays"):
        npz.load(archive(tmp_path / "odd.npz", member(shape, bytes(16))))


def test_members_that_are_no_arrays_count_by_their_size(tmp_path: Path, monkeypatch) -> None:
    with zipfile.ZipFile(tmp_path / "text.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"\0" * 3_000_000)
    monkeypatch.setenv(VARIABLE, SMALL)
    with pytest.raises(DataError, match=r"more than the 0\.001 GiB"):
        npz.load(tmp_path / "text.npz")


def test_the_limit_must_be_a_number(monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(DataError, match=f"{VARIABLE} must be a number, not 'much'"):
        check_size(Path("x.npz"), 1)
    monkeypatch.setenv(VARIABLE, "nan")
    with pytest.raises(DataError, match="more than the nan GiB"):
        check_size(Path("x.npz"), 1)
