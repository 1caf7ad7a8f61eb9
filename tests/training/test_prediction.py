"""Predictions of a run: for raw data and for samples, by client, with names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from PIL import Image

import fedfew
from fedfew import export
from fedfew.evaluation.metrics import evaluate
from tests import hospitals
from tests.helpers import federation, linear

SHORT = {"rounds": 3, "engine": "sequential", "lr": 0.3, "batch_size": 8}
QUICK = ("fedfew", "fedavg", "ditto", "fedrep", "knnper", "fedem")  # served in different ways
METHODS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in fedfew.methods.METHODS]


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fedfew.Federation, fedfew.Run]:
    path = hospitals.write(tmp_path_factory.mktemp("patients") / "patients.csv")
    data = fedfew.data.load(path, label="diagnosis", client="hospital")
    return path, data, fedfew.train(data, "linear", fedfew.FedFew(models=2), label_prior="client", serve="mixture", **SHORT)


@pytest.mark.parametrize("settings", [{}, {"label_prior": "client", "serve": "mixture"}], ids=["best", "prior-and-mixture"])
@pytest.mark.parametrize("method", METHODS)
def test_predictions_have_the_accuracy_that_was_scored(method: str, settings: dict[str, str], tmp_path: Path) -> None:
    """Of samples; of the run itself, of the one read back, and with one client per row."""
    data = federation()
    run = fedfew.train(data, "mlp", method, **SHORT, **settings)
    run.save(tmp_path / "r")
    for one in (run, fedfew.load(tmp_path / "r")):
        for client in range(4):
            x, y = data.test.of(client)
            accuracy = (one.predict(x, client=client) == y.numpy()).mean()
            assert accuracy == pytest.approx(run.history.last("served_accuracy")[client])
    whose = np.arange(4).repeat(data.test.count.numpy())
    shuffled = np.random.default_rng(0).permutation(len(whose))
    mixed = run.predict_proba(data.test.x[shuffled], client=whose[shuffled])
    for client in range(4):
        alone = run.predict_proba(data.test.of(client)[0], client=client)
        np.testing.assert_allclose(mixed[np.argsort(shuffled)][whose == client], alone, rtol=1e-6)
    np.testing.assert_allclose(mixed.sum(1), 1)


def test_a_raw_table_is_preprocessed_as_in_training(patients: tuple[Path, fedfew.Federation, fedfew.Run]) -> None:
    """The probabilities of every client's test samples are among those of the raw rows of that client, and lead to its scores."""
    path, data, run = patients
    frame = pd.read_csv(path)
    for name in hospitals.NAMES:
        here = frame[frame.hospital == name]
        raw = run.predict_proba(here, client=name)
        ready = run.predict_proba(data.test.of(hospitals.NAMES.index(name))[0], client=name)
        distance = np.abs(raw[None, :, 0] - ready[:, None, 0]).min(1)
        assert distance.max() < 1e-6
        np.testing.assert_allclose(run.predict_proba(pl.DataFrame(here.to_dict("list")), client=name), raw)
        np.testing.assert_allclose(run.predict_proba(here.to_dict("list"), client=name), raw)
    each = run.predict_proba(frame, client=frame["hospital"])
    at = (frame.hospital == name).to_numpy()
    np.testing.assert_allclose(each[at], raw)
    words = run.predict(frame, client=frame["hospital"])
    assert set(words) == set(hospitals.CLASSES)
    assert (words == np.array(hospitals.CLASSES)[each.argmax(1)]).all()
    assert (words == frame.diagnosis).mean() > 0.8


def test_the_label_prior_of_the_client_is_inside(patients: tuple[Path, fedfew.Federation, fedfew.Run]) -> None:
    """Bayes' rule by hand: a mixture of softmax(logits + log prior)."""
    _, data, run = patients
    x, _ = data.test.of(1)
    prior = run.state.priors["log_prior"][1]
    with torch.no_grad():
        each = [(model(x) + prior).softmax(1) for model in run.models]
    expected = sum(weight * one for weight, one in zip(run.state.mixture[1], each, strict=True))
    np.testing.assert_allclose(run.predict_proba(x, client=1), expected.numpy(), rtol=1e-5)


def test_texts_become_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    good, bad = ["fine", "lovely", "warm"], ["cold", "rude", "late"]
    labels = ["bad" if i % 2 else "good" for i in range(40)]
    texts = [f"it was {rng.choice(bad if label == 'bad' else good)} !" for label in labels]
    frame = pd.DataFrame({"review": texts, "rating": labels, "shop": ["A", "B"] * 20})
    frame["shop"] = ["A"] * 20 + ["B"] * 20
    data = fedfew.data.load(frame, input="review", label="rating", client="shop")

    def model() -> torch.nn.Module:
        bag = torch.nn.EmbeddingBag(data.vocabulary, 8, padding_idx=0)
        return torch.nn.Sequential(bag, torch.nn.Linear(8, 2))

    run = fedfew.train(data, model, "fedavg", **(SHORT | {"rounds": 20, "lr": 1.0}))
    assert run.predict(["It was lovely!", "RUDE and cold"]).tolist() == ["good", "bad"]
    assert run.predict(pd.Series(["warm"])).tolist() == ["good"]
    x, y = data.test.of(0)
    assert (run.predict(x) == np.array(data.class_names)[y]).all()
    with pytest.raises(ValueError, match=r"x is one text: give a list of texts, \[x\]"):
        run.predict("It was lovely!")


def test_images_of_any_size_and_kind(tmp_path: Path) -> None:
    for label, shade in (("dark", 40), ("light", 200)):
        for i in range(8):
            folder = tmp_path / "pictures" / ("Ann", "Bea")[i % 2] / label
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7), (shade + i, shade, shade)).save(folder / f"{i}.png")
    data = fedfew.data.load(tmp_path / "pictures", size=6)
    run = fedfew.train(data, "linear", "fedavg", **SHORT)
    dark, light = (Image.new("RGB", (20, 30), (shade,) * 3) for shade in (30, 220))
    dark.save(tmp_path / "new.png")
    file = tmp_path / "new.png"
    assert run.predict([dark, light]).tolist() == ["dark", "light"]
    assert run.predict([file, str(file), file.read_bytes(), np.asarray(light)]).tolist() == ["dark", "dark", "dark", "light"]
    assert run.predict(np.full((1, 6, 6, 3), 220, np.uint8)).tolist() == ["light"]
    assert run.predict([Image.new("L", (5, 5), 230), np.full((4, 4, 1), 20, np.uint8)]).tolist() == ["light", "dark"]
    assert run.predict([]).tolist() == []
    with pytest.raises(ValueError, match=r"an image must be a file, a PIL image or an array .* not float64 \[3\]"):
        run.predict([np.zeros(3)])
    (tmp_path / "note.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"note\.txt: the image cannot be decoded \(its format is none of PNG"):
        run.predict([tmp_path / "note.txt"])
    with pytest.raises(ValueError, match=r"nothing\.png: there is no such image file"):
        run.predict(["nothing.png"])
    with pytest.raises(ValueError, match="Raw data of this run would be a list of images: files, PIL images or arrays"):
        run.predict(str(file))


def test_a_client_may_be_left_out_where_all_use_one_model() -> None:
    data = federation()
    x, _ = data.test.of(2)
    shared = fedfew.train(data, linear, "fedavg", **SHORT)
    np.testing.assert_array_equal(shared.predict_proba(x), shared.predict_proba(x, client=2))
    single = fedfew.train(data.take([2]), linear, "ditto", **SHORT)
    np.testing.assert_array_equal(single.predict_proba(x), single.predict_proba(x, client=0))
    for method, settings in (("fedfew", {}), ("ditto", {}), ("fedavg", {"label_prior": "client"})):
        with pytest.raises(ValueError, match=r"client is missing, and clients use different models: .*fedfew\.join"):
            fedfew.train(data, linear, method, **SHORT, **settings).predict(x)


def test_with_an_averaged_server_clients_use_the_average() -> None:
    data = federation()
    run = fedfew.train(data, linear, "fedavg", server_average=0.5, **SHORT)
    assert run.serves_server_models
    scores = [(run.predict(data.test.of(i)[0]) == data.test.of(i)[1].numpy()).mean() for i in range(4)]
    np.testing.assert_allclose(scores, evaluate(run, data).accuracy)


@pytest.mark.parametrize(
    ("x", "client", "answer"),
    [
        (np.zeros(5), 0, r"samples of shape \[5\], one row each, not \[\]: a single sample needs one more axis, x\[None\]"),
        (np.zeros((2, 4)), 0, r"samples of shape \[5\], one row each, not \[4\]"),
        (np.zeros((2, 5), np.uint8), 0, "must be floating-point numbers, as in the training, not bytes"),
        (np.full((1, 5), np.nan), 0, "NaN or infinite"),
        (np.full((1, 5), "a"), 0, "x must hold numbers"),
        (np.zeros((2, 5)), [0, 1, 2], "client has 3 values for 2 rows"),
        (np.zeros((2, 5)), 4, r"client 4 took no part in the training; there are clients with the numbers 0 to 3\."),
        (np.zeros((2, 5)), "Basel", "client 'Basel' took no part"),
    ],
)
def test_what_does_not_fit_is_refused(x: np.ndarray, client: int | list[int], answer: str) -> None:
    run = fedfew.train(federation(), linear, "fedavg", **(SHORT | {"rounds": 1}))
    with pytest.raises(ValueError, match=answer):
        run.predict(x, client=client)
    assert run.predict(np.zeros((2, 5), int), client=np.int64(1)).shape == (2,)  # whole numbers are features here


def test_a_column_of_clients_whose_names_are_numbers() -> None:
    frame = pd.DataFrame({"a": np.arange(40.0) % 7, "site": np.repeat([7, 1], 20), "label": (np.arange(40) % 7 > 3).astype(int)})
    run = fedfew.train(fedfew.data.load(frame, client="site"), "linear", "local", **SHORT)
    order = [run.client_names.index(name) for name in ("7", "1")]
    each = run.predict_proba(frame, client=frame["site"])
    for rows, number in zip((slice(0, 20), slice(20, 40)), order, strict=True):
        np.testing.assert_array_equal(each[rows], run.predict_proba(frame[rows], client=number))
    assert not np.array_equal(run.predict_proba(frame[:20], client=0), run.predict_proba(frame[:20], client=1))
    with pytest.raises(ValueError, match="client '0' took no part"):
        run.predict(frame[:1], client=[0])


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array([True, False]), ("true", "false")),  # not the clients 1 and 0
        (np.array([0, -1]), ("0", "-1")),
        (np.array([1, 0]), ("1", "0")),
        (np.array([12.0, 11.0]), ("12", "11")),
        (np.array([3.0, np.nan]), ("3", "(missing)")),
        (np.array(["Bern", None], dtype=object), ("Bern", "(missing)")),
        (pd.array([1, None], dtype="Int64"), ("1", "(missing)")),
        (pd.Categorical(["b", "a"]), ("b", "a")),
        (pd.to_datetime(["2021-01-01", "2020-01-01"]), None),
    ],
)
def test_values_of_a_column_of_clients_mean_the_clients_named_after_them(values: Any, names: tuple[str, ...] | None) -> None:
    """Whatever their type: the column that clients were made from can be given again."""
    site = pd.Series(values).take(np.repeat([0, 1], 20)).reset_index(drop=True)
    frame = pd.DataFrame({"a": np.arange(40.0) % 7, "site": site, "label": np.arange(40) % 7 > 3})
    data = fedfew.data.load(frame, client="site")
    assert names is None or set(data.client_names) == set(names)
    run = fedfew.train(data, "linear", "local", **SHORT)
    order = [data.client_names.index(name) for name in names] if names else np.argsort(data.client_names)[::-1].tolist()
    expected = np.concatenate([run.predict_proba(frame[20 * i : 20 * i + 20], client=order[i]) for i in (0, 1)])
    assert not np.array_equal(run.predict_proba(frame, client=0), run.predict_proba(frame, client=1))
    for column in (frame["site"], frame["site"].tolist(), pl.from_pandas(frame)["site"]):
        np.testing.assert_array_equal(run.predict_proba(frame, client=column), expected)


def test_a_single_truth_value_is_a_name() -> None:
    frame = pd.DataFrame({"a": np.arange(40.0) % 7, "site": np.arange(40) < 20, "label": np.arange(40) % 7 > 3})
    run = fedfew.train(fedfew.data.load(frame, client="site"), "linear", "local", **SHORT)
    np.testing.assert_array_equal(run.predict_proba(frame, client=True), run.predict_proba(frame, client="true"))
    with pytest.raises(ValueError, match="client 'true' took no part"):
        fedfew.train(federation(), linear, "fedavg", **(SHORT | {"rounds": 1})).predict(np.zeros((1, 5)), client=True)


def test_a_table_that_lacks_a_column_or_has_words_for_numbers(patients: tuple[Path, fedfew.Federation, fedfew.Run]) -> None:
    _, _, run = patients
    with pytest.raises(ValueError, match="the table has no column 'smoker'; needed are age, smoker"):
        run.predict({"age": [30.0]}, client=0)
    with pytest.raises(ValueError, match=r"the column 'age' must hold numbers, as in the training$"):
        run.predict({"age": ["secret"], "smoker": ["yes"]}, client=0)
    assert run.predict({"age": [None, 70.0], "smoker": ["never heard of", None]}, client=0).shape == (2,)
    with pytest.raises(TypeError, match="'age' of a dict of columns is one value: give a list of values, one per row"):
        run.predict({"age": 30.0, "smoker": "yes"}, client=0)
    with pytest.raises(TypeError, match="Series is no table"):
        run.predict(pd.Series({"age": 30.0, "smoker": "yes"}), client=0)
    with pytest.raises(
        ValueError, match="Raw data of this run would be a table: a data frame, an Arrow table or a dict of columns"
    ):
        run.predict([{"age": 30.0, "smoker": "yes"}], client=0)


LABELS: dict[str, Any] = {
    "whole numbers": np.array([3, 7, 9]),
    "-1 and 1": np.array([-1, 1]),
    "whole floats": np.array([1.0, 2.0]),
    "truth values": np.array([False, True]),
    "words": np.array(["cat", "dog"]),
    "digits as words": np.array(["0", "1"]),
}


@pytest.mark.parametrize(
    ("labels", "kind"),
    [(labels, kind) for labels in LABELS for kind in ("arrays", "csv")]
    + [("truth values", kind) for kind in ("pandas", "polars", "parquet", "npz")],
)
def test_predictions_are_of_the_type_of_the_labels(labels: str, kind: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    number = draw.integers(len(LABELS[labels]), size=60)
    x, y = (number[:, None] + 0.1 * draw.normal(size=(60, 2))).astype(np.float32), LABELS[labels][number]
    if (labels, kind) == ("digits as words", "csv"):
        y = number  # a file of text cannot tell them apart
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": y})
    data: Any = {"arrays": (x, y), "pandas": frame, "polars": pl.from_pandas(frame)}.get(kind, tmp_path / f"d.{kind}")
    if kind == "csv":
        frame.to_csv(data, index=False)
    elif kind == "parquet":
        frame.to_parquet(data)
    elif kind == "npz":
        np.savez(data, x=x, y=y)
    run = fedfew.train(fedfew.data.load(data, partition="iid", clients=2), "linear", "fedavg", **(SHORT | {"rounds": 20}))
    given: Any = x if kind in ("arrays", "npz") else frame
    run.save(tmp_path / "r")
    export.write(run, tmp_path / "e")
    for one in (run, fedfew.load(tmp_path / "r"), export.read(tmp_path / "e"), run.for_new_client(given, y)):
        found = one.predict(given, None if one.one_for_all else 0)
        assert found.dtype.kind == (y.dtype.kind if y.dtype.kind != "f" else "i").replace("O", "U")
        assert (found == y).mean() > 0.9


def test_labels_of_a_federation_of_arrays_are_given_back() -> None:
    draw = np.random.default_rng(0)
    for y in (np.arange(12) % 2 == 1, np.array(["0", "1"] * 6), np.array([5, 8] * 6, dtype=object)):
        x = np.stack([y == y[1], draw.normal(size=12)], 1).astype(np.float32)
        run = fedfew.train(fedfew.Federation.from_arrays([(x, y)], [(x, y)]), "linear", "fedavg", **(SHORT | {"rounds": 30}))
        assert run.predict(x).tolist() == y.tolist()
    three = fedfew.Federation.from_arrays([(x, y == 5)], [(x, y == 5)], classes=3)
    assert three.label_type == "int"  # truth values have no third class


def test_numbers_of_classes_with_names_are_predicted_as_names() -> None:
    data = federation()
    parts = ([data.train.of(i) for i in range(4)], [data.test.of(i) for i in range(4)])
    run = fedfew.train(fedfew.Federation.from_arrays(*parts, class_names=["a", "b", "c"]), "linear", "fedavg", **SHORT)
    assert set(run.predict(data.test.x, 0)) <= {"a", "b", "c"}
