"""Scaling, imputation and one-hot encoding by hand; what is applied later is what was applied in training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from fedfew.data import DataError, load, read_prepared, write_prepared
from fedfew.data.decoded import Column, Features
from fedfew.data.preprocessing import ImagePreprocessing, from_document, to_document
from fedfew.data.table_preprocessing import Statistics, TablePreprocessing
from fedfew.federation import Federation
from tests.data import layouts

NAN = float("nan")
FEATURES = Features(
    np.array([[1.0, NAN, 1.0], [3.0, NAN, 0.0], [10.0, 6.0, 1.0], [20.0, 8.0, 1.0], [100.0, 7.0, 0.0]]),
    ("a", "b", "flag"),
    (Column(np.array([0, 1, 1, 2, 3]), ("red", "blue", "(missing)", "green")),),
    ("colour",),
    ("flag",),
)
TRAIN = [np.array([0, 1]), np.array([2, 3])]  # row 4 is for test


def test_each_client_by_its_own_training_rows() -> None:
    fitted = TablePreprocessing.fit(FEATURES, TRAIN, ["x", "y"], "client")
    # a: mean 2, deviation 1 at x; mean 15, deviation 5 at y. b: x has no value, so all clients' mean 7, deviation 1.
    # flag is not scaled. Colours of training rows in alphabetical order: (missing), blue, red.
    assert fitted.transform(FEATURES.take(TRAIN[0]), 0).tolist() == [[-1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 1, 0]]
    assert fitted.transform(FEATURES.take(TRAIN[1]), "y").tolist() == [[-1, -1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 0]]
    # green was not seen in training: all zeros
    assert fitted.transform(FEATURES.take(np.array([4])), 1).tolist() == [[17, 0, 0, 0, 0, 0]]
    assert fitted.numbers == ("a", "b", "flag")
    assert fitted.categories == (("colour", ("(missing)", "blue", "red")),)


def test_all_clients_alike() -> None:
    fitted = TablePreprocessing.fit(FEATURES, TRAIN, ["x", "y"], "global")
    mean, deviation = 8.5, np.sqrt((7.5**2 + 5.5**2 + 1.5**2 + 11.5**2) / 4)
    expected = [(v - mean) / deviation for v in (1, 3, 10, 20)]
    x = fitted.transform(FEATURES.take(np.arange(4)), 0)
    assert x[:, 0].tolist() == pytest.approx(expected)
    assert np.array_equal(x, fitted.transform(FEATURES.take(np.arange(4)), "y"))
    assert fitted.clients == ()


def test_unscaled_values_are_still_imputed() -> None:
    fitted = TablePreprocessing.fit(FEATURES, TRAIN, ["x", "y"], "none")
    assert fitted.transform(FEATURES.take(np.arange(4)), 0)[:, :3].tolist() == [[1, 7, 1], [3, 7, 0], [10, 6, 1], [20, 8, 1]]


@pytest.mark.parametrize("scale", ["client", "global", "none"])
def test_a_table_of_words_alone(scale: str) -> None:
    words = {"site": ["a", "b"] * 4, "colour": ["red", "red", "blue", "blue"] * 2, "label": ["yes", "no"] * 4}
    federation = load(pa.table(words), client="site", scale=scale)
    assert federation.shape == (2,)
    assert federation.train.x.sum(1).tolist() == [1.0] * 6


def test_a_constant_column_is_not_divided_by_zero() -> None:
    one = Features(np.array([[4.0, 0.1]] * 3), ("a", "b"), (), ())  # 0.1 + 0.1 + 0.1 is not 3 · 0.1
    assert Statistics.of(one, np.arange(3), "client").width == (1.0, 1.0)


def table(tmp_path: Path, rows: int = 60) -> Path:
    rng = np.random.default_rng(0)
    lines = ["age,sex,smoker,clinic,outcome"]
    for i in range(rows):
        age = "" if i % 13 == 0 else f"{rng.normal(50 + 20 * (i % 3), 5):.2f}"
        lines.append(
            f"{age},{'fm'[i % 2]},{'true' if i % 5 else 'false'},{('Basel', 'Bern', 'Chur')[i % 3]},{('well', 'ill')[i % 4 == 0]}"
        )
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "a.csv"


@pytest.mark.parametrize("scale", ["client", "global", "none"])
def test_what_is_applied_later_is_what_was_applied_in_training(tmp_path: Path, scale: str) -> None:
    pd = pytest.importorskip("pandas")
    path = table(tmp_path)
    federation = load(path, label="outcome", client="clinic", scale=scale)  # type: ignore[arg-type]
    assert federation.client_names == ("Basel", "Bern", "Chur")
    frame = pd.read_csv(path)
    assert federation.preprocessing is not None
    for i, name in enumerate(federation.client_names):
        mine = frame[frame.clinic == name]
        inputs = federation.preprocessing.apply(mine.drop(columns="outcome"), client=name)
        stored = torch.cat([federation.train.of(i)[0], federation.test.of(i)[0]]).numpy()
        assert sorted(map(tuple, inputs.tolist())) == sorted(map(tuple, stored.tolist()))
    means = [float(federation.train.of(i)[0][:, 0].mean()) for i in range(3)]
    if scale == "client":
        assert means == pytest.approx([0, 0, 0], abs=1e-6)
    elif scale == "global":
        assert means[0] < -0.5
        assert means[2] > 0.5
    else:
        assert means == pytest.approx([50, 70, 90], abs=4)
    assert "missing values: age (5)" in federation.about["notes"][-1]


def test_scale_is_checked_and_changes_the_samples(tmp_path: Path) -> None:
    path = table(tmp_path)
    with pytest.raises(ValueError, match='scale must be "client", "global" or "none", not \'yes\''):
        load(path, label="outcome", client="clinic", scale="yes")  # type: ignore[arg-type]
    made = {s: load(path, label="outcome", client="clinic", scale=s).fingerprint() for s in ("client", "global", "none")}  # type: ignore[arg-type]
    assert len(set(made.values())) == 3


def test_test_rows_do_not_change_the_statistics(tmp_path: Path) -> None:
    """The largest age is in the test split of the first table, and a hundred times larger in the second."""
    path = table(tmp_path)
    first = load(path, label="outcome", client="clinic")
    lines = path.read_text().splitlines()
    ages = first.preprocessing.clients[0][1]  # type: ignore[union-attr]
    raw_test = (first.test.of(0)[0][:, 0] * ages.width[0] + ages.shift[0]).numpy()
    row = next(i for i, line in enumerate(lines) if line.split(",")[0] and line.split(",")[0] == f"{raw_test[0]:.2f}")
    lines[row] = "9999" + lines[row][lines[row].index(",") :]
    path.write_text("\n".join(lines) + "\n")
    second = load(path, label="outcome", client="clinic")
    assert second.preprocessing == first.preprocessing
    assert not torch.equal(second.test.x, first.test.x)
    assert torch.equal(second.train.x, first.train.x)


def texts(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(
        "text,label\n" + "".join(f"the word{i % 7} is {'good' if i % 2 else 'bad'},{i % 2}\n" for i in range(40))
    )
    return tmp_path / "t.csv"


def test_texts_and_images(tmp_path: Path) -> None:
    federation = load(texts(tmp_path), clients=2, partition="iid")
    assert federation.preprocessing is not None
    tokens = federation.preprocessing.apply([f"the word{i % 7} is {'good' if i % 2 else 'bad'}" for i in range(40)])
    stored = torch.cat([federation.train.x, federation.test.x]).numpy()
    assert tokens.dtype == stored.dtype
    assert sorted(map(tuple, tokens.tolist())) == sorted(map(tuple, stored.tolist()))
    layouts.image_folder(tmp_path / "pictures", classes=2, each=6)
    pictures = load(tmp_path / "pictures", clients=2, partition="iid", size=8)
    assert isinstance(pictures.preprocessing, ImagePreprocessing)
    pixels = pictures.preprocessing.apply(sorted((tmp_path / "pictures").rglob("*.jpg")))
    stored = torch.cat([pictures.train.x, pictures.test.x]).numpy()
    assert sorted(p.tobytes() for p in pixels) == sorted(p.tobytes() for p in stored)


def test_a_new_image_of_another_size_is_named(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path / "train", classes=2, each=4)
    preprocessing = load(tmp_path / "train", clients=2, partition="iid").preprocessing
    assert isinstance(preprocessing, ImagePreprocessing)
    (tmp_path / "new.png").write_bytes(layouts.picture(3, (20, 30)))
    with pytest.raises(DataError, match=r"new\.png: the image is 20×30 pixels, but the models were trained on 16×16: resize it"):
        preprocessing.apply([tmp_path / "new.png"])
    with pytest.raises(DataError, match=r"^the image is 20×30 pixels"):
        preprocessing.apply([layouts.picture(3, (20, 30))])
    (tmp_path / "new.png").write_bytes(layouts.picture(3, (16, 16)))
    assert preprocessing.apply([tmp_path / "new.png"]).shape[2:] == (16, 16)


def test_sixteen_bit_images_later(tmp_path: Path) -> None:
    from tests.data.test_images import in_folder, sixteen_bit

    folder = in_folder(tmp_path, {f"{'ab'[i % 2]}/{i}.png": sixteen_bit(v) for i, v in enumerate([0, 1024] * 4 + [4095])})
    fitted = load(folder, clients=2, partition="iid").preprocessing
    assert fitted is not None
    assert fitted.apply([sixteen_bit(1024)]).flatten()[0] == 64  # by the twelve bits of the set, not of this image
    with pytest.raises(DataError, match="more than the 12 bits that images had in training"):
        fitted.apply([sixteen_bit(9000)])


@pytest.mark.parametrize("kind", ["table", "text", "image"])
def test_written_and_read_equal(tmp_path: Path, kind: str) -> None:
    settings = {"label": "outcome", "client": "clinic"} if kind == "table" else {"clients": 2, "partition": "iid"}
    source = {"table": table, "text": texts, "image": lambda p: layouts.image_folder(p / "i", classes=2, each=4)}[kind](tmp_path)
    federation: Federation = load(source, **settings)  # type: ignore[arg-type]
    assert federation.preprocessing is not None
    document = to_document(federation.preprocessing)
    assert from_document(json.loads(json.dumps(document))) == federation.preprocessing
    again = read_prepared(write_prepared(federation, tmp_path / "a.fed"))
    assert again.preprocessing == federation.preprocessing
    assert again.client_names == federation.client_names
    with pytest.raises(DataError, match="is damaged"):
        from_document({"kind": kind})
    with pytest.raises(DataError, match="no preprocessing of kind 'audio'"):
        from_document({"kind": "audio"})


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    fitted = load(table(tmp_path), label="outcome", client="clinic").preprocessing
    assert fitted is not None
    with pytest.raises(DataError, match="the table has no column 'sex'; needed are age, smoker, sex"):
        fitted.apply({"age": [1.0], "smoker": [True]})
    assert fitted.apply({"age": [50.0], "smoker": [True], "sex": ["f"]}, client="Geneva").shape == (1, 4)
