"""New data for models that exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedfew.data import DataError
from fedfew.data.new_data import read


def test_tables_in_any_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age;site;sick\n30;A;yes\n;B;no\n", encoding="utf-8")
    pq.write_table(pa.table({"age": [30, None], "site": ["A", "B"], "sick": ["yes", "no"]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        found = read(tmp_path / name, "table", ["age"], "sick")
        assert found.x["age"].to_pylist() == [30, None]
        assert (found.names, found.labels.tolist()) == (("1", "2"), ["yes", "no"])
        assert found.columns == {"site": ["A", "B"], "sick": ["yes", "no"]}
    assert read(tmp_path / "a.csv", "table", ["age"], "absent").labels is None


def test_a_column_of_texts_or_of_image_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("review,file\nfine,1.png\nlate,2.png\n")
    assert read(tmp_path / "a.csv", "text", ["review"]).x == ["fine", "late"]
    assert read(tmp_path / "a.csv", "image", ["file"]).x == [tmp_path / "1.png", tmp_path / "2.png"]


def test_archives(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 5)), y=np.array([[0, 1], [1, 0]]), site=np.array([7.0, 8.0]), other=np.zeros(9))
    found = read(tmp_path / "a.npz", None)
    assert found.labels.tolist() == [[0, 1], [1, 0]]  # one-hot, or several labels: that is for the task to say
    assert found.columns == {"site": ["7", "8"]}
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 5)), y=np.zeros((2, 1)))
    assert read(tmp_path / "b.npz", "table").labels.tolist() == [0, 0]


def test_images_by_folder(tmp_path: Path) -> None:
    for name in ("Ann/cat/1.png", "Bea/dog/2.png"):
        (tmp_path / "p" / name).parent.mkdir(parents=True)
        Image.new("L", (2, 2)).save(tmp_path / "p" / name)
    found = read(tmp_path / "p", "image")
    assert found.names == ("Ann/cat/1.png", "Bea/dog/2.png")
    assert found.labels.tolist() == ["cat", "dog"]
    assert found.columns == {"client": ["Ann", "Bea"]}
    single = read(tmp_path / "p/Ann/cat/1.png", "image")
    assert (single.names, single.labels, single.columns) == (("1.png",), None, {})


@pytest.mark.parametrize(
    ("name", "kind", "answer"),
    [
        ("none.csv", "table", "there is no file or folder"),
        ("a.csv", None, r"an \.npz file with the array x is needed"),
        ("a.txt", "table", r"a table \(\.csv, \.tsv, \.parquet or \.jsonl\) is needed"),
        ("a.csv", "text", "a.csv has no column 'review', which held the texts in training"),
        ("text.csv", "text", "text.csv, row 2: the text is missing"),
        ("gap.csv", "table", "gap.csv, row 2: the label is missing"),
        ("folder", "image", "there are no images in"),
        ("broken.npz", None, "cannot be read as .npz"),
        ("broken.parquet", "table", "cannot be read as parquet"),
        ("y.npz", None, r"holds \['y'\], but the array x is needed"),
        ("short.npz", None, "one label per sample is needed"),
        ("groups.npz", None, "groups must have one value per sample, 2 in all"),
        ("outside.csv", "image", "points outside the folder"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, kind: str | None, answer: str) -> None:
    (tmp_path / "a.csv").write_text("age\n30\n")
    (tmp_path / "gap.csv").write_text("review,n\nfine,1\nNA,\n")
    (tmp_path / "text.csv").write_text("review,n\nfine,1\nNA,2\n")
    (tmp_path / "outside.csv").write_text("review\n../secret.png\n")
    (tmp_path / "folder").mkdir()
    for broken in ("broken.npz", "broken.parquet", "a.txt"):
        (tmp_path / broken).write_text("nothing of the kind")
    np.savez(tmp_path / "y.npz", y=np.zeros(2))
    np.savez(tmp_path / "short.npz", x=np.zeros((2, 5)), y=np.zeros(3))
    np.savez(tmp_path / "groups.npz", x=np.zeros((2, 5)), groups=np.zeros(3))
    with pytest.raises(DataError, match=answer):
        read(tmp_path / name, kind, ["review"], "n")
    with pytest.raises(DataError, match=r"a\.csv is a table, but the images .* no column of one: give an image or a folder"):
        read(tmp_path / "a.csv", "image")
