"""Parquet and CSV files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from fedfew.data import DataError, SkippedWarning, load
from tests.data import layouts
from tests.data.layouts import everything, two


def test_csv_of_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "height,width,hospital,species\n"
        + "".join(f"{i + 0.5},{i / 2 + 0.25},{i % 3},{'cat' if i % 2 else 'dog'}\n" for i in range(30))
    )
    federation = load(file, label="species", partition="by:hospital", scale="none")
    assert len(federation) == 3
    assert federation.shape == (2,)  # the column of clients is no feature
    assert federation.class_names == ("cat", "dog")
    assert everything(federation) == 30
    x, _ = federation.train.of(1)
    assert torch.equal(x[:, 0] / 2, x[:, 1])
    assert load(file, label="species", input=["height"], clients=2, partition="iid").shape == (1,)


def test_csv_of_texts(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("text\tlabel\n" + "".join(f'"Good, bad\n{i}"\t{i % 2 + 1}\n' for i in range(20)))
    federation = two(file)
    assert federation.shape == (200,)
    assert federation.class_names == ("1", "2")  # numbered anew, names kept
    assert set(federation.train.y.tolist()) == {0, 1}


def test_csv_of_image_paths(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path / "pictures", classes=2, each=6)
    names = [f"pictures/kind{c}/{i}.jpg,{c},p{6 * c + i // 2}" for c in range(2) for i in range(6)]
    (tmp_path / "a.csv").write_text("path,label,patient\n" + "\n".join(names) + "\n")
    federation = load(tmp_path / "a.csv", clients=2, partition="iid", group="patient")
    assert federation.shape == (3, 16, 16)
    assert everything(federation) == 12
    (tmp_path / "pictures/kind0/0.jpg").write_bytes(layouts.picture(9, (16, 16), "RGB"))
    again = load(tmp_path / "a.csv", clients=2, partition="iid", group="patient")
    assert again.fingerprint() != federation.fingerprint()  # not from the cache


def test_parquet_with_images_beside_it(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path / "p", classes=2, each=4)
    paths: list[str | None] = [f"p/kind{c}/{i}.jpg" for c in range(2) for i in range(4)]
    layouts.write(tmp_path / "a.parquet", {"image": layouts.images([None] * 8, paths), "label": [0] * 4 + [1] * 4})
    assert everything(two(tmp_path / "a.parquet")) == 8
    layouts.write(tmp_path / "b.parquet", {"picture": pa.array([layouts.picture(i) for i in range(8)]), "label": ["a", "b"] * 4})
    assert two(tmp_path / "b.parquet").shape == (1, 28, 28)


def test_splits_are_merged_in_order(tmp_path: Path) -> None:
    from fedfew.data.readers.arrow_tables import split_order

    files = [
        Path(n)
        for n in ("test-0.parquet", "train-1.parquet", "train-0.parquet", "x.parquet", "valid-0.parquet", "train/9.parquet")
    ]
    assert [str(f) for f in split_order(files)] == [
        "train-0.parquet",
        "train-1.parquet",
        "train/9.parquet",
        "valid-0.parquet",
        "test-0.parquet",
        "x.parquet",
    ]


def test_a_folder_that_all_files_are_in_is_no_split(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    for name in ("train-0", "more"):
        layouts.write(folder / f"{name}.parquet", {"x": [0.5, 1.5, 2.5, 3.5], "label": [0, 1, 0, 1]})
    assert two(folder).about["test_share"] == 0.25


def test_a_column_of_splits_with_an_unknown_name_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for names, unknown in ((["train", "test"], ""), (["train", "tset"], "'tset'"), (["train", "test", ""], "'(missing)'")):
        file.write_text("height,kind,split\n" + "".join(f"{i / 7},{i // 3 % 2},{names[i % len(names)]}\n" for i in range(24)))
        federation = load(file, label="kind", clients=2, partition="iid")
        noted = [note for note in federation.about["notes"] if note.startswith("the column split")]
        if unknown:
            wanted = f"the column split is one like any other, and does not split the data: it holds {unknown}, known are train, "
            assert len(noted) == 1
            assert noted[0].startswith(wanted)
        else:
            assert not noted
            assert int(federation.test.count.sum()) == 12
    file.write_text("height,split\n" + "".join(f"{i / 7},{('train', 'test')[i % 2]}\n" for i in range(24)))
    labelled = load(file, label="split", clients=2, partition="iid")  # to be predicted, not to be divided by
    assert (labelled.class_names, int(labelled.test.count.sum())) == (("test", "train"), 6)


def test_files_that_differ(tmp_path: Path) -> None:
    layouts.write(tmp_path / "train.parquet", {"x": [0.5, 1.5, 2.5] * 2, "label": [0, 1] * 3}, {"label": ["no", "yes"]})
    layouts.write(tmp_path / "test.parquet", {"x": [0.5] * 4, "label": [0, 1] * 2, "age": [1] * 4})
    assert two(tmp_path).about["notes"][0] == "columns left out, because train.parquet does not have them: age"
    layouts.write(tmp_path / "test.parquet", {"x": [0.5] * 4, "label": [0, 1] * 2}, {"label": ["yes", "no"]})
    with pytest.raises(
        DataError, match=r"train\.parquet and test\.parquet have different class names for the numbers in 'label'"
    ):
        two(tmp_path)


def test_missing_values_and_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,z,label\n1,2,a\n,2,b\n1,inf,a\n3,4,b\n5,6,a\n7,8,b\n")
    with pytest.raises(DataError, match=r"a\.csv, row 3: a value is infinite"):
        two(tmp_path / "a.csv")
    with pytest.warns(SkippedWarning, match="left out 1"):
        assert everything(two(tmp_path / "a.csv", on_bad="skip")) == 5
    (tmp_path / "b.csv").write_text('text,label\nhello,a\n"",b\nyou,a\nthere,b\nwho,b\n')
    with pytest.warns(SkippedWarning, match="row 2: the text is missing"):
        assert everything(two(tmp_path / "b.csv", on_bad="skip")) == 4


@pytest.mark.parametrize(
    ("columns", "settings", "words"),
    [
        ({"image": [1], "kind": [2]}, {}, "no column that is recognised as the label; columns: image, kind"),
        ({"x": [1.0], "label": [2]}, {"label": "kind"}, "no label column 'kind'"),
        (
            {"x": [1.0], "label": [2]},
            {"label": "x,label"},
            r"no label column 'x,label'.*Several are a list.*--label x --label label",
        ),
        ({"x": [1.0], "label": [2]}, {"input": "z"}, "no input column 'z'"),
        ({"x": [1.0], "w": [2.0], "label": [2]}, {"input": "x, w"}, r"Several are a list, input=\['x', 'w'\]"),
        ({"words": ["a"], "label": [2]}, {}, "no column that is recognised as the input"),
        ({"x": [1.0], "s": [["a"]], "label": [2]}, {"input": ["x", "s"]}, "'s' holds neither numbers nor words"),
    ],
)
def test_columns_that_are_not_there(
    tmp_path: Path, columns: dict[str, list[object]], settings: dict[str, object], words: str
) -> None:
    layouts.write(tmp_path / "a.parquet", {name: values * 9 for name, values in columns.items()})
    with pytest.raises(DataError, match=words):
        two(tmp_path / "a.parquet", **settings)


def test_a_nested_column_is_no_image_and_is_left_out_with_a_logged_note(caplog: pytest.LogCaptureFixture) -> None:
    rows = {"x": [i % 5 + 0.5 for i in range(40)], "label": [0, 1] * 20, "address": [{"city": "Chur"}] * 40}
    assert load(pa.table(rows), partition="iid", clients=2).shape == (1,)
    assert any("columns left out: address (neither numbers nor words (struct<" in line for line in caplog.messages)


def test_missing_image_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,label\nnone.png,0\nneither.png,1\n,1\n")
    with pytest.raises(DataError, match=r"row 1: there is no such image file"):
        two(tmp_path / "a.csv")
    with pytest.raises(DataError, match="no row of a can be used"):
        two(tmp_path / "a.csv", on_bad="skip")


def test_files_that_are_something_else(tmp_path: Path) -> None:
    for name, words in {
        "a.parquet": "cannot be read as parquet",
        "a.npz": r"cannot be read as \.npz",
        "a.csv": "cannot be read as CSV",
    }.items():
        (tmp_path / name).write_bytes(b"" if name == "a.csv" else b"nonsense")
        with pytest.raises(DataError, match=words):
            load(tmp_path / name)
    np.savez(tmp_path / "b.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match="plain arrays"):
        load(tmp_path / "b.npz")
    np.savez(tmp_path / "b.npz", x=np.random.default_rng(0).normal(size=(50, 9)), y=np.zeros(50))
    (tmp_path / "b.npz").write_bytes((tmp_path / "b.npz").read_bytes()[:-300])
    with pytest.raises(DataError, match="plain arrays"):
        load(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", inputs=np.zeros(3))
    with pytest.raises(DataError, match=r"holds \['inputs'\], but x and y"):
        load(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 2)), y=np.zeros(4))
    with pytest.raises(DataError, match=r"x has shape \[3, 2\] and y \[4\]"):
        load(tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", x=np.array(["a", "b"]), y=np.zeros(2))
    with pytest.raises(DataError, match="numbers are needed"):
        load(tmp_path / "e.npz")
    np.savez(tmp_path / "f.npz", x_train=np.zeros((3, 2)), y_train=np.zeros(3), x_test=np.zeros((3, 5)), y_test=np.zeros(3))
    with pytest.raises(DataError, match="splits do not fit together"):
        load(tmp_path / "f.npz")
    (tmp_path / "g.csv").write_text("x,label\n")
    with pytest.raises(DataError, match=r"g\.csv has no rows"):
        load(tmp_path / "g.csv")
    layouts.write(tmp_path / "h" / "train-0.parquet", {"x": [1.0, 2.0], "label": [0, 1]})
    layouts.write(tmp_path / "h" / "test-0.parquet", {"z": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(DataError, match=r"test-0\.parquet has no column 'x'"):
        load(tmp_path / "h")
    layouts.write(tmp_path / "i" / "train-0.parquet", {"x": [1.0, 2.0], "label": [0, 1]})
    layouts.write(tmp_path / "i" / "test-0.parquet", {"x": [[1.0], [2.0]], "label": [0, 1]})
    with pytest.raises(DataError, match="do not fit together"):
        load(tmp_path / "i")
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "lonely.png").write_bytes(layouts.picture(1))
    with pytest.raises(DataError, match="is in no class folder"):
        load(tmp_path / "j")
