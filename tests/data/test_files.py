"""Files of one's own, and what can be wrong with them."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from fedfew.data import DataError, SkippedWarning, load
from fedfew.data.readers import inside
from fedfew.federation import Federation
from tests.data import layouts


def everything(federation: Federation) -> int:
    return int(federation.train.count.sum() + federation.test.count.sum())


def two(path: Path, **settings: object) -> Federation:
    return load(path, clients=2, partition="iid", **settings)  # type: ignore[arg-type]


# --- what works


def test_csv_of_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "height,width,hospital,species\n" + "".join(f"{i},{i / 2},{i % 3},{'cat' if i % 2 else 'dog'}\n" for i in range(30))
    )
    federation = load(file, label="species", partition="by:hospital")
    assert len(federation) == 3
    assert federation.shape == (2,)  # the column dealt by is no feature
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


def test_npz(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 9, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(40) % 4, site=np.arange(40) % 5)
    federation = load(tmp_path / "a.npz", partition="by:site")
    assert (len(federation), federation.shape, federation.train.x.dtype) == (5, (3, 9, 8), torch.uint8)
    np.savez(
        tmp_path / "b.npz",
        x_train=pixels[:30, ..., 0],
        y_train=np.arange(30) % 2,
        x_test=pixels[30:, ..., 0],
        y_test=np.arange(10) % 2,
    )
    assert (two(tmp_path / "b.npz").shape, everything(two(tmp_path / "b.npz"))) == ((1, 9, 8), 40)
    np.savez(tmp_path / "c.npz", x=rng.normal(size=(20, 7)), y=np.arange(20) % 2)
    assert two(tmp_path / "c.npz").train.x.dtype == torch.float32
    np.savez(tmp_path / "d.npz", x=np.arange(40).reshape(20, 2), y=np.arange(20) % 2)
    assert two(tmp_path / "d.npz").train.x.dtype == torch.int64


def test_image_folders(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path / "plain")
    federation = two(tmp_path / "plain")
    assert (federation.shape, federation.class_names, everything(federation)) == ((3, 16, 16), ("kind0", "kind1", "kind2"), 24)
    for split in ("train", "test"):
        layouts.image_folder(tmp_path / "split", below=split)
    assert everything(two(tmp_path / "split")) == 48
    assert two(tmp_path / "plain", size=8).shape == (3, 8, 8)
    assert two(tmp_path / "plain", size=(1, 4, 6)).shape == (1, 4, 6)
    assert two(tmp_path / "plain", pixels="unit").train.pixels == "unit"


def test_parquet_with_images_beside_it(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path / "p", classes=2, each=4)
    paths: list[str | None] = [f"p/kind{c}/{i}.jpg" for c in range(2) for i in range(4)]
    layouts.write(tmp_path / "a.parquet", {"image": layouts.images([None] * 8, paths), "label": [0] * 4 + [1] * 4})
    assert everything(two(tmp_path / "a.parquet")) == 8
    layouts.write(tmp_path / "b.parquet", {"picture": pa.array([layouts.picture(i) for i in range(8)]), "label": ["a", "b"] * 4})
    assert two(tmp_path / "b.parquet").shape == (1, 28, 28)


def test_splits_are_merged_in_order(tmp_path: Path) -> None:
    from fedfew.data.readers import split_order

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


# --- what does not


def broken_parquet(tmp_path: Path) -> Path:
    good = [layouts.picture(i) for i in range(12)]
    noise = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)).save(noise, "PNG")
    files: list[bytes | None] = [*good, b"not an image", noise.getvalue()[:300], None]
    labels = [i % 2 for i in range(15)]
    return layouts.write(tmp_path / "bad.parquet", {"image": layouts.images(files), "label": labels}, {"label": ["a", "b"]})


def test_a_corrupt_image_is_named_or_skipped(tmp_path: Path) -> None:
    file = broken_parquet(tmp_path)
    with pytest.raises(DataError, match=r'bad\.parquet, row 13: the image cannot be decoded .*on_bad="skip"'):
        two(file)
    with pytest.warns(SkippedWarning, match=r"left out 3: bad\.parquet, row 13: .*row 14: .*row 15: the image is missing"):
        federation = two(file, on_bad="skip")
    assert everything(federation) == 12
    assert len(federation.about["skipped"]) == 3
    with pytest.raises(DataError, match="row 13"):  # also when the cache knows what was left out
        two(file)


def test_missing_and_impossible_labels(tmp_path: Path) -> None:
    files = layouts.images([layouts.picture(i) for i in range(10)])
    layouts.write(
        tmp_path / "a.parquet", {"image": files, "label": pa.array([0, 1, None, 0, 1, -1, 7, 0, 1, 0])}, {"label": ["a", "b"]}
    )
    with pytest.raises(DataError, match=r"a\.parquet, row 3: the label is missing"):
        two(tmp_path / "a.parquet")
    with pytest.warns(SkippedWarning, match=r"left out 3.*row 3: the label is missing.*row 7: the label 7 is outside 0 … 1"):
        assert everything(two(tmp_path / "a.parquet", on_bad="skip")) == 7
    (tmp_path / "b.csv").write_text("x,label\n1,a\n2,\n3,b\n4,a\n5,b\n")
    with pytest.raises(DataError, match=r"b\.csv, row 2: the label is missing"):
        two(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("x,label\n1,0.5\n2,1.5\n3,1\n")
    with pytest.raises(DataError, match=r"c\.csv, row 1: the label 0.5 is not a class"):
        two(tmp_path / "c.csv")


def test_one_class_only(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n" + "1,cat\n" * 9)
    with pytest.raises(DataError, match=r"all 9 rows .* have the one label 'cat'"):
        two(tmp_path / "a.csv")


def test_a_client_too_small_to_cut(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label,site\n" + "".join(f"{i},{i % 2},{'only' if i == 3 else 'main'}\n" for i in range(9)))
    with pytest.raises(DataError, match="client 1 has 1 sample, too few to cut into 2 sides"):
        load(tmp_path / "a.csv", partition="by:site")
    with pytest.raises(ValueError, match="partition by:site: the column has 2 different values, too few for 5 clients"):
        load(tmp_path / "a.csv", partition="by:site", clients=5)
    with pytest.warns(SkippedWarning, match="client 1 has 1 sample"):
        assert len(load(tmp_path / "a.csv", partition="by:site", on_bad="skip")) == 1


def test_missing_values_and_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,z,label\n1,2,a\n,2,b\n1,inf,a\n3,4,b\n5,6,a\n7,8,b\n")
    with pytest.raises(DataError, match=r"a\.csv, row 2: a value is missing"):
        two(tmp_path / "a.csv")
    with pytest.warns(SkippedWarning, match="left out 2"):
        assert everything(two(tmp_path / "a.csv", on_bad="skip")) == 4
    (tmp_path / "b.csv").write_text('text,label\nhello,a\n"",b\nyou,a\nthere,b\nwho,b\n')
    with pytest.warns(SkippedWarning, match="row 2: the text is missing"):
        assert everything(two(tmp_path / "b.csv", on_bad="skip")) == 4


def test_a_text_of_a_million_characters(tmp_path: Path) -> None:
    texts = ["short one", "word " * 200_000, "x" * 10**6, "another"] * 2
    layouts.write(tmp_path / "a.parquet", {"text": texts, "label": [0, 1] * 4})
    federation = two(tmp_path / "a.parquet")
    assert federation.shape == (200,)
    assert federation.about["notes"] == ["4 texts were cut at 20,000 characters"]


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "a/../../secret.png", "..\\secret.png", "C:\\secret.png", "link.png"]
)
def test_paths_that_climb_out(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    layouts.image_folder(folder, classes=2, each=4)
    (tmp_path / "secret.png").write_bytes(layouts.picture(1))
    os.symlink(tmp_path / "secret.png", folder / "link.png")
    with pytest.raises(DataError, match="leads out of the folder"):
        inside(folder, name)
    (folder / "a.csv").write_text(
        "file_name,label\n" + "".join(f"kind{c}/{i}.jpg,{c}\n" for c in range(2) for i in range(4)) + f"{name},1\n"
    )
    with pytest.raises(DataError, match=r"a\.csv, row 9: the path .* leads out of the folder"):
        two(folder / "a.csv")
    with pytest.warns(SkippedWarning, match="left out 1"):
        assert everything(two(folder / "a.csv", on_bad="skip")) == 8
    assert inside(folder, "kind0/1.jpg") == folder / "kind0" / "1.jpg"


def test_a_linked_image_outside_the_folder(tmp_path: Path) -> None:
    folder = layouts.image_folder(tmp_path / "data", classes=2, each=4)
    (tmp_path / "secret.png").write_bytes(layouts.picture(1, (16, 16), "RGB"))
    os.symlink(tmp_path / "secret.png", folder / "kind0" / "z.png")
    with pytest.raises(DataError, match=r"kind0/z\.png: the path .* leads out"):
        two(folder)


def test_missing_image_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,label\nnone.png,0\nneither.png,1\n,1\n")
    with pytest.raises(DataError, match=r"row 1: there is no file .*none\.png"):
        two(tmp_path / "a.csv")
    with pytest.raises(DataError, match="no row of a can be used"):
        two(tmp_path / "a.csv", on_bad="skip")


def test_images_of_different_sizes(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path, classes=2, each=4)
    (tmp_path / "kind1" / "9.png").write_bytes(layouts.picture(3, (20, 30), "RGB"))
    with pytest.raises(DataError, match=r"kind1/9\.png: the image is 20×30 pixels, but the first is 16×16: size="):
        two(tmp_path)
    assert everything(two(tmp_path, size=16)) == 9
    with pytest.raises(ValueError, match="size must be a number of pixels"):
        two(tmp_path, size=(4, 8, 8))


def test_a_huge_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.data.decode.MOST_PIXELS", 200)
    layouts.image_folder(tmp_path, classes=2, each=4)
    with pytest.raises(DataError, match="16×16 pixels, more than the 200 that are accepted"):
        two(tmp_path)


def test_large_images_are_decoded_in_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for c in range(2):
        (tmp_path / f"c{c}").mkdir()
        for i in range(140):
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / f"c{c}" / f"{i}.png")
    federation = two(tmp_path)
    assert everything(federation) == 280
    assert len({x.numpy().tobytes() for s in (federation.train, federation.test) for x in s.x}) == 280


@pytest.mark.parametrize(
    ("columns", "settings", "words"),
    [
        ({"image": [1], "kind": [2]}, {}, "no column that is plainly the label; its columns are image, kind"),
        ({"x": [1.0], "label": [2]}, {"label": "kind"}, "no label column 'kind'"),
        ({"x": [1.0], "label": [2]}, {"input": "z"}, "no input column 'z'"),
        ({"words": ["a"], "label": [2]}, {}, "no column that is plainly the input"),
        ({"x": [1.0], "s": ["a"], "label": [2]}, {"input": ["x", "s"]}, "'s' does not hold numbers"),
    ],
)
def test_columns_that_are_not_there(
    tmp_path: Path, columns: dict[str, list[object]], settings: dict[str, object], words: str
) -> None:
    layouts.write(tmp_path / "a.parquet", {name: values * 9 for name, values in columns.items()})
    with pytest.raises(DataError, match=words):
        two(tmp_path / "a.parquet", **settings)


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
    with pytest.raises(DataError, match=r"x is \[3, 2\] but y holds 4 labels"):
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
    with pytest.raises(DataError, match="lies in no class folder"):
        load(tmp_path / "j")


def test_text_cannot_be_turned(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"word{i},{i % 2}\n" for i in range(20)))
    with pytest.raises(DataError, match="turns square images, but these are texts"):
        load(tmp_path / "a.csv", clients=2, partition="rotation")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path / "a.csv", clients=2, partition="label-permutation:2").groups is not None
