"""The files of the MNIST family."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedfew.data import DataError, load
from tests.data.layouts import everything, pixels_of


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def mnist(folder: Path, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, begin, number in (("train", 0, 40), ("t10k", 40, 20)):
        images = np.full((number, 28, 28), 0) + np.arange(begin, begin + number)[:, None, None]
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(number) % 10)):
            contents = idx(array)
            name = f"{prefix}-{kind}-ubyte{'.gz' if packed else ''}"
            (folder / name).write_bytes(gzip.compress(contents) if packed else contents)
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_a_folder_as_it_is_downloaded(tmp_path: Path, packed: bool) -> None:
    federation = load(mnist(tmp_path / "raw", packed), clients=2, partition="iid")
    assert (federation.shape, federation.classes, everything(federation)) == ((1, 28, 28), 10, 60)
    assert pixels_of(federation).tolist() == list(range(60))
    assert sorted(federation.test.x[:, 0, 0, 0].tolist()) == list(range(40, 60))  # t10k is the test split
    for samples in (federation.train, federation.test):
        assert ((samples.x[:, 0, 0, 0] - 40 * (samples.x[:, 0, 0, 0] >= 40)) % 10 == samples.y).all()


def test_by_name_and_by_file(tmp_path: Path) -> None:
    mnist(tmp_path / "fashion-mnist")
    named = load("fashion-mnist", data_dir=tmp_path, clients=2, partition="iid")
    assert everything(named) == 60
    assert (
        int(named.test.count.sum()) == 16
    )  # as for all named sets: merged, then a quarter of 30 rows (7.5, rounded to 8) per client
    one = load(tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz", clients=2, partition="iid")
    assert everything(one) == 40


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "cannot be read as idx file"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read as idx file"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 10, 28, 28) + b"short", mtime=0), "announces 7,840 bytes but holds 5"),
        (
            gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**15, 28), mtime=0),
            "more than the 8 GiB that are read from one file",
        ),
        (gzip.compress(struct.pack(">HBB3I", 0, 13, 3, 10, 28, 28), mtime=0), "is no idx file of bytes"),
        (gzip.compress(idx(np.zeros((3, 28, 28))), mtime=0), r"shape \[3, 28, 28\] and its labels one of \[20\]"),
    ],
)
def test_damaged_files(tmp_path: Path, contents: bytes, words: str) -> None:
    mnist(tmp_path / "raw")
    (tmp_path / "raw" / "t10k-images-idx3-ubyte.gz").write_bytes(contents)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "raw")


def test_a_label_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"")
    for path in (tmp_path, tmp_path / "train-images-idx3-ubyte"):
        with pytest.raises(DataError, match=r"label='site': .* no columns to choose from"):
            load(path, label="site")


def test_labels_that_are_not_there(tmp_path: Path) -> None:
    (mnist(tmp_path / "raw") / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"there is no train-labels-idx1-ubyte\.gz beside it"):
        load(tmp_path / "raw")
