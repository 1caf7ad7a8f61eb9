"""Scores of one client for classes, numbers and several labels, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedfew.evaluation import client_metrics as metrics

NAN = float("nan")


def test_the_confusion_matrix_and_what_follows_from_it() -> None:
    confusion = metrics.confusion_matrix([0, 0, 0, 1, 1], [0, 0, 1, 1, 3], classes=4)
    assert confusion.tolist() == [[2, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    scores = metrics.class_scores(confusion)
    np.testing.assert_allclose(scores.precision, [1, 1 / 2, NAN, 0])
    np.testing.assert_allclose(scores.recall, [2 / 3, 1 / 2, NAN, NAN])
    np.testing.assert_allclose(scores.f1, [4 / 5, 1 / 2, NAN, 0])
    assert scores.samples.tolist() == [3, 2, 0, 0]
    assert metrics.balanced_accuracy(confusion) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert metrics.macro_f1(confusion) == pytest.approx((4 / 5 + 1 / 2 + 0) / 3)


def test_without_samples_there_is_no_score() -> None:
    empty = metrics.confusion_matrix([], [], classes=2)
    assert np.isnan([metrics.balanced_accuracy(empty), metrics.macro_f1(empty)]).all()


@pytest.mark.parametrize(
    ("labels", "predicted", "message"),
    [([0, 1], [0], "one shape"), ([0, 2], [0, 1], "labels must lie in 0 … 1"), ([0, 1], [0, -1], "predicted must lie in 0 … 1")],
)
def test_labels_that_do_not_fit_are_refused(labels: list[int], predicted: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.confusion_matrix(labels, predicted, classes=2)


def test_scores_of_numbers() -> None:
    scores = metrics.regression_scores([[1.0], [2.0], [3.0]], [[0.0], [2.0], [4.0]])
    assert scores == pytest.approx({"r2": 1 - 2 / 8, "mae": 2 / 3, "rmse": np.sqrt(2 / 3)})
    several = metrics.regression_scores([[0.0, 1.0], [2.0, 1.0]], [[0.0, 0.0], [2.0, 2.0]])
    assert several == pytest.approx({"r2": (1 + 0) / 2, "mae": 0.5, "rmse": np.sqrt(0.5)})
    assert np.isnan(metrics.regression_scores([[1.0], [2.0]], [[3.0], [3.0]])["r2"])
    with pytest.raises(ValueError, match=r"one shape \[N ≥ 1, d\], not \[2\] and \[2\]"):
        metrics.regression_scores([1.0, 2.0], [1.0, 2.0])


def test_scores_of_several_labels() -> None:
    outputs, y = [[1.0, -1.0, -1.0], [2.0, 1.0, -1.0], [-1.0, 1.0, -2.0]], [[1, 0, 0], [0, 1, 0], [1, 1, 0]]
    scores = metrics.multi_label_scores(outputs, y)
    assert scores["micro_f1"] == pytest.approx(2 * 3 / (4 + 4))
    assert scores["macro_f1"] == pytest.approx((2 * 1 / 4 + 1) / 2)  # the third label is neither there nor predicted
    assert scores["auc"] == pytest.approx((0 + 1) / 2)  # label 0: its one negative is ranked first; label 1: perfect
    assert scores["subset_accuracy"] == pytest.approx(1 / 3)
    nothing = metrics.multi_label_scores([[-1.0], [-1.0]], [[0], [0]])
    assert (nothing["micro_f1"], nothing["macro_f1"], nothing["subset_accuracy"]) == (1, 1, 1)
    assert np.isnan(nothing["auc"])
