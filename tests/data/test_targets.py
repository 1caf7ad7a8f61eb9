"""Labels that are numbers, or several per sample, from files and objects to a federation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedfew import data
from fedfew.data import prepared, show
from fedfew.data.errors import DataError, SkippedWarning


def frame(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, rows))
    return pd.DataFrame(
        {
            "a": a,
            "b": b,
            "site": ["xy"[i % 2] for i in range(rows)],
            "y": 2 * a,
            "u": (a > 0).astype(int),
            "v": (b > 0).astype(int),
        }
    )


def test_numbers_that_are_not_whole_are_a_regression_and_a_note_says_so() -> None:
    found = data.load(frame().drop(columns=["u", "v"]), client="site")
    assert (found.task, found.class_names, found.train.y.shape[1]) == ("regression", ("y",), 1)
    assert "the labels are numbers that are not all whole: the task is regression (task=… says otherwise)" in found.about["notes"]
    given = data.load(frame().drop(columns=["u", "v"]), client="site", task="regression")
    assert not any("task" in note for note in given.about["notes"])


def test_whole_numbers_are_classes_unless_the_task_is_given() -> None:
    table = frame().drop(columns=["y", "v"])
    assert data.load(table, client="site", label="u").task == "classification"
    found = data.load(table, client="site", label="u", task="regression")
    assert (found.task, sorted(set(found.train.y.flatten().tolist()))) == ("regression", [0.0, 1.0])


def test_several_columns_are_several_labels_or_targets() -> None:
    labels = data.load(frame().drop(columns="y"), client="site", label=["u", "v"])
    assert (labels.task, labels.class_names, labels.shape) == ("multi-label", ("u", "v"), (2,))
    numbers = data.load(frame(), client="site", label=["y", "u"], input=["a", "b"])
    assert (numbers.task, numbers.class_names) == ("regression", ("y", "u"))
    with pytest.raises(DataError, match="there is no label column 'w'"):
        data.load(frame(), label=["u", "w"])


def test_rows_of_labels_in_arrays() -> None:
    x = frame()[["a", "b"]].to_numpy()
    assert data.load([(x, frame()[["u", "v"]].to_numpy())] * 2).task == "multi-label"
    assert data.load([(x, np.eye(4)[np.arange(40) % 4])] * 2).classes == 4  # one-hot rows are classes
    with pytest.raises(DataError, match="one class or one-hot row per sample is needed"):
        data.load([(x, frame()[["u", "v"]].to_numpy())] * 2, task="classification")
    with pytest.raises(DataError, match="2 whole numbers per sample, which may be amounts or classes"):
        data.load([(x, np.arange(80).reshape(40, 2))] * 2)


def test_missing_targets_are_bad_rows() -> None:
    table = frame().drop(columns=["u", "v"])
    table.loc[3, "y"] = np.nan
    with pytest.raises(DataError, match="row 4: the label is missing"):
        data.load(table, client="site")
    with pytest.warns(SkippedWarning, match="left out 1"):
        assert sum(s.count.sum() for s in (data.load(table, client="site", on_bad="skip").train,)) < 40


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": "site", "task": "regression", "input": ["a"]}, "row 1: the label is no number, but the task is regression"),
        ({"label": ["y", "u"], "task": "multi-label", "input": ["a"]}, "the labels must be 0 or 1, one per label"),
        ({"label": "y", "partition": "dirichlet:0.5", "clients": 2}, "splits classes among clients, but the task is regression"),
        ({"label": "y", "partition": "label-permutation", "clients": 2}, "permutes classes, but the task is regression"),
        ({"label": "y", "client": "site", "stratify": True}, "stratify is for classes, but the task is regression"),
        (
            {"label": "y", "task": "ranking"},
            "task must be classification, regression, multi-label or language-modelling, not 'ranking'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises((DataError, ValueError), match=message):
        data.load(frame(), **settings)  # type: ignore[arg-type]  # some of them are wrong


def test_labels_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="the labels have different numbers of values per sample"):
        data.load(pd.DataFrame({"a": [0.1, 0.2, 0.3, 0.4], "label": [[0, 1], [1], [0, 0], [1, 1]]}), clients=1, partition="iid")


def test_digits_have_classes() -> None:
    with pytest.raises(ValueError, match="the task is 'regression', by itself or by the loss, but the digits have classes"):
        data.load("digits", task="regression")


def test_a_prepared_federation_keeps_its_task(tmp_path: Path) -> None:
    made = data.load(frame().drop(columns=["u", "v"]), client="site")
    again = prepared.read(prepared.write(made, tmp_path / "a.fed"))
    assert (again.task, again.fingerprint()) == ("regression", made.fingerprint())
    assert data.load(tmp_path / "a.fed", task="regression").task == "regression"
    with pytest.raises(ValueError, match="a prepared federation with the task regression"):
        data.load(tmp_path / "a.fed", task="classification")


def test_data_show_describes_numbers_and_labels() -> None:
    numbers = data.load(frame().drop(columns=["u", "v"]), client="site")
    found = show.target_statistics(numbers)
    y = frame()["y"].to_numpy()
    np.testing.assert_allclose(found[-1, 0], [y.mean(), y.std()], rtol=1e-5)
    np.testing.assert_allclose(found[0, 0], [y[::2].mean(), y[::2].std()], rtol=1e-5)
    document = show.document(numbers)
    assert document["label_distance"] is None
    assert document["clients"][0]["targets"]["y"] == pytest.approx([y[::2].mean(), y[::2].std()], rel=1e-5)
    assert [str(column.header) for column in show.table(numbers).columns][-2:] == ["y: mean", "y: std"]
    with pytest.raises(ValueError, match="there are no classes to count"):
        show.counts(numbers)
    labels = data.load(frame().drop(columns="y"), client="site", label=["u", "v"])
    assert show.counts(labels)[0].tolist() == frame()[["u", "v"]].to_numpy()[::2].sum(0).tolist()
