"""Scores, summaries and diagnostics: values worked out by hand, independent formulas, invariances."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedfew import Federation, History, train
from fedfew.evaluation.metrics import client_scores, evaluate, jain, last_and_best, summarise, weight_diagnostics
from fedfew.methods import METHODS
from tests.methods.tiers import tiered

NAN = float("nan")
numbers = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=25)

# -- over clients ------------------------------------------------------------------------------------------------------------


def test_summary_by_hand():
    s = summarise([0.2, 0.4, NAN, 0.9], samples=[10, 30, 1000, 60])
    assert s.clients == 3
    assert s.mean == pytest.approx(0.5)
    assert s.std == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 3))  # by M, not M − 1
    assert (s.min, s.max) == (0.2, 0.9)
    assert s.weighted_mean == pytest.approx((2 + 12 + 54) / 100)
    assert s.worst_tenth == 0.2
    assert s.jain == pytest.approx(2.25 / (3 * (0.04 + 0.16 + 0.81)))


def test_worst_tenth_is_the_mean_of_the_lowest_tenth_rounded_up():
    values = np.arange(21.0)[::-1]
    assert summarise(values).worst_tenth == 1.0  # ⌈21/10⌉ = 3: 0, 1, 2
    assert summarise(values[:20]).worst_tenth == 1.5  # 2: 1, 2
    assert summarise(values, higher_is_better=False).worst_tenth == 19.0
    assert summarise([*values[:20], NAN]).worst_tenth == 1.5  # the tenth of those that are there


def test_without_samples_there_is_no_weighted_mean():
    assert summarise([1.0, 2.0]).weighted_mean is None


def test_no_client_with_a_value_gives_nan_not_a_number_made_up():
    s = summarise([NAN, NAN], samples=[1, 2])
    assert s.clients == 0
    assert all(math.isnan(x) for x in (s.mean, s.std, s.min, s.max, s.weighted_mean, s.worst_tenth, s.jain))


@pytest.mark.filterwarnings("error")
def test_infinite_values_count_and_leave_no_spread() -> None:
    s = summarise([0.5, -math.inf, NAN, 0.25], samples=[1, 2, 3, 4])
    assert (s.clients, s.max) == (3, 0.5)
    assert s.mean == s.weighted_mean == s.worst_tenth == s.min == -math.inf
    assert math.isnan(s.std)
    assert math.isnan(s.jain)
    assert summarise([1.0, -math.inf], samples=[1, 0]).weighted_mean == 1.0
    assert math.isnan(summarise([math.inf, -math.inf]).mean)
    losses = summarise([1.0, math.inf], higher_is_better=False)
    assert (losses.mean, losses.worst_tenth, losses.min) == (math.inf, math.inf, 1.0)
    assert math.isnan(losses.jain)


@pytest.mark.parametrize(
    ("values", "samples", "message"),
    [
        ([], None, r"values must hold one number per client.*\[0\]"),
        ([[1.0]], None, r"values must hold one number per client.*\[1, 1\]"),
        ([1.0, 2.0], [1], "samples has 1 clients, but values has 2"),
        ([1.0, 2.0], [1, -3], "samples must be finite and ≥ 0, but client 1 has -3"),
        ([1.0, 2.0], [NAN, 1], "samples must be finite and ≥ 0, but client 0"),
        ([1.0, NAN], [0, 5], "samples are 0 for every client that has a value"),
    ],
)
def test_what_is_wrong_is_named(values, samples, message):
    with pytest.raises(ValueError, match=message):
        summarise(values, samples)


@given(st.data(), numbers)
def test_the_order_of_clients_does_not_matter(data, values):
    samples = data.draw(st.lists(st.integers(1, 100), min_size=len(values), max_size=len(values)))
    order = data.draw(st.permutations(range(len(values))))
    a, b = summarise(values, samples), summarise([values[i] for i in order], [samples[i] for i in order])
    assert vars(a) == pytest.approx(vars(b), abs=1e-12)


@given(numbers, st.integers(-150, 150))
def test_jain_is_between_1_over_m_and_1_whatever_the_scale(values, exponent):
    index = jain(values)
    assert 1 / len(values) - 1e-12 <= index <= 1 + 1e-12
    assert jain([x * 2.0**exponent for x in values if x > 1e-100] or [0]) == pytest.approx(
        jain([x for x in values if x > 1e-100] or [0])
    )


def test_jain_at_its_ends():
    assert jain([0.0, 0.0, 5.0, 0.0]) == 0.25
    assert jain([3.0, 3.0, 3.0]) == 1.0
    assert jain([0.0, 0.0]) == 1.0
    assert math.isnan(jain([1.0, -1.0]))
    assert jain([1e200, 2e200]) == jain([1.0, 2.0]) == pytest.approx(0.9)


@given(numbers)
def test_equal_samples_weigh_like_none(values):
    s = summarise(values, [7] * len(values))
    assert s.weighted_mean == pytest.approx(s.mean)


# -- of one client -----------------------------------------------------------------------------------------------------------


def test_scores_by_hand():
    # two classes of three occur; the third is predicted once
    logits = np.log([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6], [0.4, 0.35, 0.25]])
    s = client_scores(logits, [0, 1, 1, 0], classes=3)
    assert s.accuracy == 0.75
    assert s.loss == pytest.approx(-np.log([0.5, 0.5, 0.2, 0.4]).mean())
    assert s.macro_f1 == pytest.approx((1 + 2 / 3 + 0) / 3)  # class 1: TP 1, FN 1; class 2: FP 1
    # class 0: .5 and .4 against .25 and .2: 1. Class 1: .5 and .2 against .25 and .35: (1 + 1 + 0 + 0) / 4
    assert s.auc == pytest.approx((1 + 0.5) / 2)


def test_a_class_neither_there_nor_predicted_does_not_count():
    logits = np.eye(5)[[0, 1, 1]]
    assert client_scores(logits, [0, 1, 1], classes=5).macro_f1 == 1.0


def test_one_class_has_no_auc():
    s = client_scores([[2.0, 1.0], [0.0, 1.0]], [0, 0], classes=2)
    assert math.isnan(s.auc)
    assert s.macro_f1 == pytest.approx((2 / 3 + 0) / 2)


def test_equal_scores_are_half_a_win():
    assert client_scores(np.zeros((4, 2)), [0, 0, 1, 1], classes=2).auc == 0.5


def test_auc_ranks_beyond_the_precision_of_probabilities():
    # softmax gives 1.0 for class 0 in every row, yet the rows are in perfect order
    logits = [[90.0, 0.0], [80.0, 0.0], [70.0, 0.0], [60.0, 0.0]]
    s = client_scores(logits, [0, 0, 1, 1], classes=2)
    assert s.auc == 1.0
    assert s.loss == pytest.approx((70 + 60) / 4)


def test_huge_logits_do_not_overflow():
    s = client_scores([[1e5, -1e5], [-1e5, 1e5]], [0, 0], classes=2)
    assert s.loss == 1e5
    assert s.accuracy == 0.5


def _drawn(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, 6))
    n = int(rng.integers(1, 30))
    return rng.normal(size=(n, classes)) * 3, rng.integers(0, rng.integers(1, classes + 1), size=n), classes


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_against_pairs_and_a_confusion_matrix(seed):
    logits, y, classes = _drawn(seed)
    s = client_scores(logits, y, classes)
    p = torch.softmax(torch.from_numpy(logits), 1)
    areas = []
    for c in range(classes):
        positive, negative = p[y == c, c], p[y != c, c]
        if len(positive) and len(negative):
            areas.append(float((positive[:, None] > negative).double().mean()))
    assert s.auc == pytest.approx(np.mean(areas)) if areas else math.isnan(s.auc)
    confusion = np.zeros((classes, classes))
    np.add.at(confusion, (y, logits.argmax(1)), 1)
    occurs = confusion.sum(0) + confusion.sum(1)
    f1 = 2 * confusion.diagonal()[occurs > 0] / occurs[occurs > 0]
    assert s.macro_f1 == pytest.approx(f1.mean())
    assert s.accuracy == pytest.approx(confusion.trace() / len(y))
    assert s.loss == pytest.approx(float(nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(y))))


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_the_order_of_samples_and_a_shift_of_logits_do_not_matter(seed):
    logits, y, classes = _drawn(seed)
    order = np.random.default_rng(seed + 1).permutation(len(y))
    a, b = client_scores(logits, y, classes), client_scores(logits[order] + 5.0, y[order], classes)
    assert vars(a) == pytest.approx(vars(b), nan_ok=True)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((2, 3)), [0, 1], r"logits must have shape \[N ≥ 1, 2 classes\], not \[2, 3\]"),
        (np.zeros((0, 2)), [], r"logits must have shape"),
        (np.zeros((2, 2)), [0], r"labels must have shape \[2\].*\[1\]"),
        (np.zeros((2, 2)), [0, 2], "labels must lie in 0 … 1, but run from 0 to 2"),
        (np.zeros((2, 2)), [0.0, 1.0], "labels must be whole numbers"),
        ([[0.0, 0.0], [0.0, NAN]], [0, 1], "logits must be finite, but those of sample 1"),
    ],
)
def test_bad_logits_and_labels_are_named(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        client_scores(logits, labels, classes=2)


# -- of all clients of a run -------------------------------------------------------------------------------------------------


def federation(kind: str = "float", clients: int = 5) -> Federation:
    rng = np.random.default_rng(3)

    def part(n: int):
        y = rng.integers(0, 3, n)
        if kind == "tokens":
            return rng.integers(0, 11, (n, 6)) % (y[:, None] + 3), y
        x = rng.normal(size=(n, 6)) + y[:, None]
        return (np.clip(40 * x + 100, 0, 255).astype(np.uint8) if kind == "pixels" else x), y

    return Federation.from_arrays([part(12 + i) for i in range(clients)], [part(9 + 3 * i) for i in range(clients)], classes=3)


def bag_of_words() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(11, 4, mode="mean"), nn.Linear(4, 3))


@pytest.mark.parametrize("method", tiered())
def test_evaluation_agrees_with_the_history(method):
    data = federation()
    run = train(data, "mlp", method, rounds=2, batch_size=5, lr=0.1, engine="sequential", device="cpu")
    scores = evaluate(run, data)
    np.testing.assert_allclose(scores.accuracy, run.history.served_accuracy[-1], atol=1e-6)
    np.testing.assert_allclose(scores.loss, run.history.served_loss[-1], rtol=1e-4)
    assert len(set(np.round(scores.loss, 4))) > 1  # clients differ, so a mix-up would show
    assert scores.samples.tolist() == [9, 12, 15, 18, 21]
    assert scores.macro_f1.shape == scores.auc.shape == (5,)
    same = np.allclose(run.history.served_loss, run.history.adapted_loss, atol=1e-6)
    assert same == ("the two scores are the same" in METHODS[method].adapted)  # what the page says is true


@pytest.mark.parametrize(("kind", "model"), [("pixels", "linear"), ("tokens", bag_of_words)])
def test_evaluation_of_bytes_and_token_ids(kind, model):
    data = federation(kind)
    run = train(data, model, "fedavg", rounds=2, batch_size=5, lr=0.1, engine="sequential", device="cpu")
    np.testing.assert_allclose(evaluate(run, data).loss, run.history.served_loss[-1], rtol=1e-4)


def test_evaluation_scales_pixels_as_the_federation_says():
    data = federation("pixels")
    run = train(data, "linear", "fedavg", rounds=1, engine="sequential", device="cpu")
    scores = evaluate(run, replace(data, test=replace(data.test, pixels="unit")))
    x, y = data.test.of(1)
    expected = nn.functional.cross_entropy(run.models[0](x.float() / 255), y)
    assert scores.loss[1] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_every_client_is_scored_with_its_own_model():
    data = federation()
    run = train(data, "linear", "fedfew", rounds=1, batch_size=5, lr=0.1, engine="sequential", device="cpu")
    run.state.choice = torch.tensor([0, 1, 2, 1, 0])
    scores = evaluate(run, data)
    for i in range(5):
        x, y = data.test.of(i)
        expected = client_scores(run.model_of(i)(x).detach().numpy(), y.numpy(), 3)
        assert scores.loss[i] == pytest.approx(expected.loss)
        assert scores.auc[i] == pytest.approx(expected.auc)


def test_evaluation_refuses_what_does_not_fit():
    data = federation()
    run = train(data, "linear", "fedavg", rounds=1, engine="sequential", device="cpu")
    with pytest.raises(ValueError, match="federation has 2 clients and 3 classes, but the run was made with 5 and 3"):
        evaluate(run, data.take([0, 1]))
    run.state.server["1.bias"][:] = 3e38
    run.state.server["1.weight"][:] = 3e38
    with pytest.raises(ValueError, match="client 0: logits must be finite"):
        evaluate(run, data)


# -- over rounds -------------------------------------------------------------------------------------------------------------


def test_diagnostics_by_hand():
    history = History()
    history.append(round=5, w=np.full((2, 3), 1 / 3), alpha=[0.5, 0.5], choice=[0, 0])
    history.append(round=10, w=[[1, 0, 0], [0.5, 0.5, 0]], alpha=[0.25, 0.75], choice=[0, 2])
    history.append(round=15, w=[[NAN] * 3, [0, 0, 1]], alpha=[NAN, 1.0], choice=[1, 2])  # client 0 was absent
    d = weight_diagnostics(history)
    assert d.round.tolist() == [5, 10, 15]
    np.testing.assert_allclose(d.entropy, [math.log(3), math.log(2) / 2, 0], atol=1e-12)
    np.testing.assert_allclose(d.largest, [1 / 3, 0.75, 1])
    np.testing.assert_allclose(d.alpha_cv, [0, 0.5, 0])
    assert d.models_in_use.tolist() == [1, 2, 2]


def test_diagnostics_of_runs():
    data = federation()
    settings = {"rounds": 2, "batch_size": 5, "engine": "sequential", "device": "cpu"}
    few = weight_diagnostics(train(data, "linear", "fedfew", participation=0.5, **settings).history)
    assert np.all((few.entropy >= 0) & (few.entropy <= math.log(3) + 1e-6))
    assert np.all((few.largest >= 1 / 3) & (few.largest <= 1))
    assert np.isfinite(few.alpha_cv).all()
    one = weight_diagnostics(train(data, "linear", "fedavg", **settings).history)
    assert (one.entropy, one.largest, one.alpha_cv) == (None, None, None)
    assert one.models_in_use.tolist() == [1, 1]


def test_last_and_best_rounds_by_their_numbers():
    history = History()
    history.append(round=2, served_accuracy=[0.1, 0.3], adapted_accuracy=[0.5, 0.7])
    history.append(round=4, served_accuracy=[0.6, 0.4], adapted_accuracy=[NAN, 0.9])
    history.append(round=6, served_accuracy=[0.5, 0.5], adapted_accuracy=[0.4, NAN])
    result = last_and_best(history)
    assert (result.last.round, result.last.served, result.last.adapted) == (6, 0.5, 0.4)
    assert (result.best_served.round, result.best_served.served, result.best_served.adapted) == (
        4,
        0.5,
        0.9,
    )
    assert result.best_adapted.round == 4  # and of equals the earliest
    history.append(round=8, served_accuracy=[0.7, 0.5], adapted_accuracy=[NAN, NAN])
    result = last_and_best(history)
    assert (result.best_served.round, result.best_adapted.round, result.last.round) == (8, 4, 8)


@pytest.mark.parametrize("function", [last_and_best, weight_diagnostics])
def test_an_empty_history_is_refused(function):
    with pytest.raises(ValueError, match="the history is empty"):
        function(History())
