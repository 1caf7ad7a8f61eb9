"""The rule of one standard error, by hand, and what is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedfew.evaluation.choosing_k import Advice, Observed, Regret, decide, statistical_fit
from fedfew.evaluation.costs import Cost


def test_the_standard_error_is_of_differences_by_client_by_hand() -> None:
    """Differences 0.1 and 0.3: mean 0.2, sample variance 0.02, standard error √(0.02/2) = 0.1. Hard clients do not count."""
    d = decide({1: np.array([[1.1, 100.3]]), 2: np.array([[1.0, 100.0]])})
    assert d.best == 2
    assert d.worse == pytest.approx([0.2, 0.0])
    assert d.error == pytest.approx([0.1, 0.0])
    assert d.chosen == 2  # 0.2 > 0.1


def test_seeds_add_a_part_of_their_own() -> None:
    """Over seeds 0 and 0.4 for both clients: variance 0.08, /2 = 0.04, its root 0.2 ≥ the difference of 0.2: fewer will do."""
    d = decide({1: np.array([[1.0, 1.0], [1.4, 1.4]]), 2: np.ones((2, 2))})
    assert d.error[0] == pytest.approx(0.2)
    assert d.chosen == 1


def test_the_smallest_within_one_error_is_chosen_not_the_best() -> None:
    rng = np.random.default_rng(0)
    base = rng.exponential(size=(3, 50))
    losses = {K: base + shift + 0.1 * rng.normal(size=(3, 50)) for K, shift in ((1, 1.0), (2, 0.005), (3, 0.0), (4, 0.5))}
    d = decide(losses)
    assert d.chosen == 2
    assert d.chosen <= d.best
    assert d.ks == (1, 2, 3, 4)


def test_one_client_and_one_seed_leave_no_error() -> None:
    d = decide({1: np.array([[0.5]]), 2: np.array([[0.4]])})
    assert d.error.tolist() == [0.0, 0.0]
    assert d.chosen == 2


def test_fit_of_a_root() -> None:
    s, fit = statistical_fit({K: 0.3 * math.sqrt(K) for K in (1, 2, 4)})
    assert s == pytest.approx(0.3)
    assert fit == pytest.approx(1.0)
    assert statistical_fit({1: 0.4, 4: 0.1})[1] < 0  # it falls
    assert math.isnan(statistical_fit({1: 0.2})[1])
    assert statistical_fit({1: -0.1, 2: -0.2})[0] == 0  # no statistical error to be seen


def cost(K: int) -> Cost:
    return Cost(2_000_000 * K, 1_000_000 * K, 5.0 * K, K, 0, 1, K, 0, 1, K)


def advice(losses: dict[int, list[float]], in_use: int | None = None, regrets: float = 1.0) -> Advice:
    """A seed for each number of the lists; all four clients alike but for a little."""
    wobble = np.array([-0.01, 0.01, -0.01, 0.01])
    runs = [
        Observed(K, seed, loss + wobble * (K + seed), np.full(4, 0.9), np.full(4, loss / 2), in_use or K)
        for K, means in losses.items()
        for seed, loss in enumerate(means)
    ]
    difference = regrets * (1 - np.eye(4))
    return Advice(tuple(runs), Regret(np.arange(4), 4, difference, np.ones(4)), {K: cost(K) for K in losses}, clients=4)


def test_the_least_is_named_with_what_one_less_would_cost() -> None:
    found = advice({1: [1.0, 1.0], 2: [0.4, 0.4], 3: [0.4, 0.4]})
    why, use, costs, theory = found.sentences()
    assert why.startswith("Take K = 2: its mean validation loss, 0.400, is ")
    assert "with K = 1 it is 1.000" in why
    assert "largest K tried" not in why
    assert use == "Of 2 models 2 are in use (mean over seeds); each of 2 seeds alone says K = 2, too: the choice is stable."
    assert costs.startswith("A round costs a client 2 MB up, 4 MB down and 10 steps")
    assert "1 on average" in theory


def test_what_is_not_stable_or_at_the_end_is_said() -> None:
    found = advice({1: [1.0, 0.1], 3: [0.2, 0.2]}, in_use=2)
    assert found.by_seed == {0: 3, 1: 1}
    assert "seeds alone say 3, 1: the choice is not stable" in found.sentences()[1].lower()
    largest = advice({1: [1.0], 3: [0.2]}, in_use=2)
    assert "It is the largest K tried: more may be better still (--ks 1-4)" in largest.sentences()[0]
    assert "Of 3 models 2 are in use: those that nobody uses need not be kept" in largest.sentences()[1]
    assert "one seed only" in largest.sentences()[1]


def test_one_model_needs_no_word_on_use() -> None:
    assert advice({1: [0.2, 0.2], 2: [0.5, 0.5]}).sentences()[1] == "Each of 2 seeds alone says K = 1, too: the choice is stable."


def test_the_bound_by_hand() -> None:
    """(1 − K/4)·1 + s·√K with gaps of half the loss: 0.5 and 0.2, so s = (0.5 + √2·0.2) / 3."""
    found = advice({1: [1.0], 2: [0.4]})
    s = (0.5 + math.sqrt(2) * 0.2) / 3
    assert found.gaps == pytest.approx({1: 0.5, 2: 0.2})
    assert found.coverage(1) == pytest.approx(0.75)
    assert found.statistical(2) == pytest.approx(s * math.sqrt(2))
    assert found.by_theory == 2
    alike = advice({1: [1.0], 2: [0.4]}, regrets=-1.0)  # others' models are better: nothing to cover
    assert alike.coverage(1) == 0
    assert alike.by_theory == 1
    assert "too loose to choose by" in alike.sentences()[3]
    assert "others' models serve it better than its own" in alike.sentences()[3]
    assert "(1 − K/M)·0 + " in alike.sentences()[3]


def test_values_are_plain() -> None:
    values = advice({1: [1.0, 1.0], 2: [0.4, 0.6]}).values()
    assert values["chosen"] == 2
    assert values["ks"][2]["by_seed"] == pytest.approx({0: 0.4, 1: 0.6})
    assert values["heterogeneity"]["largest"] == 1.0
