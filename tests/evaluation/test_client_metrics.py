"""Scores of one client for classes, numbers and several labels, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score

from fedfew.evaluation import client_metrics as metrics

NAN = float("nan")


def test_scores_of_classes_by_their_confusion_matrix() -> None:
    scores = metrics.class_scores([[2, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(scores.precision, [1, 1 / 2, NAN, 0])
    np.testing.assert_allclose(scores.recall, [2 / 3, 1 / 2, NAN, NAN])
    np.testing.assert_allclose(scores.f1, [4 / 5, 1 / 2, NAN, 0])
    assert scores.samples.tolist() == [3, 2, 0, 0]


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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=12))
def test_f1_and_auc_are_those_of_scikit_learn(samples: list[tuple[int, int, int]]) -> None:
    """Small whole numbers as logits, so that many samples are ranked alike."""
    y = np.array([label for label, *_ in samples])
    logits = np.array([(a, b, a * b, 0.5) for _, a, b in samples], dtype=np.float64)
    scores = metrics.client_scores(logits, y, 4)
    assert scores.macro_f1 == pytest.approx(f1_score(y, logits.argmax(1), average="macro", zero_division=0.0), abs=1e-12)
    present = np.unique(y)
    if len(present) == 1:
        assert np.isnan(scores.auc)
    else:
        each = [roc_auc_score(y == c, metrics._log_odds(logits)[:, c]) for c in present]
        assert scores.auc == pytest.approx(np.mean(each), abs=1e-12)
    several = metrics.multi_label_scores(logits[:, :2] - 0.1, np.stack([y > 1, y % 2], 1))
    mixed = [label for label, there in enumerate((y > 1, y % 2 == 1)) if 0 < there.sum() < len(y)]
    expected = [roc_auc_score((y > 1, y % 2 == 1)[label], logits[:, label]) for label in mixed]
    assert several["auc"] == pytest.approx(np.mean(expected) if mixed else NAN, abs=1e-12, nan_ok=True)
