"""Confusion matrices of runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

import fedfew
from fedfew.training import confusion
from fedfew.training.confusion import Confusion
from fedfew.util.files import DamagedFileError
from tests.helpers import federation, linear

SHORT = {"rounds": 3, "engine": "sequential", "lr": 0.3, "batch_size": 8}


def test_counts_by_hand() -> None:
    counts = Confusion.of([([0, 0, 1], [0, 1, 1]), ([2, 2], [0, 0])], 3)
    assert counts.entries.tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1], [1, 2, 0, 2]]
    assert counts.matrix(0).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    assert counts.matrix().tolist() == [[1, 1, 0], [0, 1, 0], [2, 0, 0]]


@pytest.mark.parametrize("settings", [{}, {"label_prior": "client", "serve": "mixture"}], ids=["best", "strong"])
def test_a_run_counts_what_it_was_scored_by(settings: dict[str, str], tmp_path: Path) -> None:
    data = federation()
    run = fedfew.train(data, linear, **SHORT, **settings)
    for client in range(4):
        x, y = data.test.of(client)
        expected = confusion_matrix(y, run.predict(x, client=client), labels=[0, 1, 2])
        np.testing.assert_array_equal(run.confusion(client), expected)
        assert np.trace(expected) / len(y) == pytest.approx(run.history.last("served_accuracy")[client])
    assert run.confusion().sum() == data.test.count.sum()
    run.save(tmp_path / "r")
    back = fedfew.load(tmp_path / "r", linear)
    for other in (back, pickle.loads(pickle.dumps(run))):
        with pytest.raises(ValueError, match="was not counted when the run ended: give its federation, data=…"):
            other.confusion()
        np.testing.assert_array_equal(other.confusion(data=data), run.confusion())
    run.confusions().write(tmp_path / "r", run.round)
    np.testing.assert_array_equal(back.confusion("2"), run.confusion(2))
    run.confusions().write(tmp_path / "r", run.round - 1)  # of another round
    assert confusion.read(tmp_path / "r", run.round) is None


def test_targets_that_are_no_classes_have_none() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(9, 5)), rng.normal(size=9)) for _ in range(3)]
    run = fedfew.train(fedfew.Federation.from_arrays(parts, parts), "linear", "fedavg", **(SHORT | {"rounds": 1}))
    with pytest.raises(ValueError, match="a confusion matrix is of classes, but the task of this run is regression"):
        run.confusion()


@pytest.mark.parametrize("entries", [np.zeros((2, 3)), np.array([[0, 0, 3, 1]]), np.array([[-1, 0, 0, 1]]), None])
def test_a_damaged_file_is_named(entries: np.ndarray | None, tmp_path: Path) -> None:
    if entries is None:
        (tmp_path / "confusion.npz").write_text("not an archive")
    else:
        Confusion(entries, 2, 3).write(tmp_path, 5)
    with pytest.raises(DamagedFileError, match=r"confusion\.npz is damaged"):
        confusion.read(tmp_path, 5)
