"""The rule by hand, and what is said."""

from __future__ import annotations

import numpy as np
import pytest

from fedfew.evaluation.choosing_k import Advice, Observed, Regret, decide
from fedfew.evaluation.costs import Cost


def run(models: int, validation: list[float], seed: int = 0, in_use: int | None = None) -> Observed:
    losses = np.array(validation)
    return Observed(models, seed, losses, np.full(len(losses), 0.9), losses / 2, in_use or models)


def test_the_standard_error_is_of_differences_by_client_by_hand() -> None:
    """Differences 0.1 and 0.5: mean 0.3, sample variance 0.08, standard error √(0.08/2) = 0.2. Hard clients do not count."""
    d = decide([run(1, [1.1, 100.5]), run(2, [1.0, 100.0])])
    assert d.best == 2
    assert d.worse == pytest.approx([0.3, 0.0])
    assert d.error == pytest.approx([0.2, 0.0])
    assert d.chosen == 1  # 0.3 ≤ 2 · 0.2
    assert decide([run(1, [1.2, 100.3]), run(2, [1.0, 100.0])]).chosen == 2  # 0.25 > 2 · 0.05


def test_a_number_of_models_is_judged_by_its_best_run() -> None:
    """One of two runs with two models ended in a bad grouping."""
    good, bad, three = run(2, [0.3, 0.31], 0), run(2, [0.9, 0.9], 1), run(3, [0.29, 0.31], 0)
    d = decide([bad, good, three])
    assert d.counts == (2, 3)
    assert d.runs[0] is good
    assert d.chosen == 2


def test_what_counts_is_how_many_models_are_in_use() -> None:
    """K = 6 found the best grouping, and uses four models: four are enough."""
    d = decide([run(4, [0.9, 0.95], in_use=4), run(5, [0.5, 0.5], in_use=5), run(6, [0.2, 0.2], in_use=4)])
    assert (d.counts, d.chosen, d.best) == ((4, 5), 4, 4)
    assert d.runs[0].models == 6


def test_one_client_leaves_no_error() -> None:
    d = decide([run(1, [0.5]), run(2, [0.4])])
    assert d.error.tolist() == [0.0, 0.0]
    assert d.chosen == 2


def cost(K: int) -> Cost:
    return Cost(2_000_000 * K, 1_000_000 * K, 5.0 * K, K, 0, 1, K, 0, 1, K)


def test_what_clients_learn_alone_may_be_infinite() -> None:
    """The bound was 0 then: of 0 and what is no number the first is the larger."""
    found = advice({1: [0.5], 2: [0.4]}, regrets=np.nan)
    assert np.isnan(found.coverage(1))
    assert "Heterogeneity is not known: models of single clients have infinite losses" in found.sentences()[-1]


def advice(losses: dict[int, list[float]], in_use: int | None = None, regrets: float = 1.0) -> Advice:
    """A seed for each number of the lists; all four clients alike but for a little."""
    wobble = np.array([-0.01, 0.01, -0.01, 0.01])
    runs = [
        run(K, list(loss + wobble * (K + seed)), seed, in_use) for K, means in losses.items() for seed, loss in enumerate(means)
    ]
    difference = regrets * (1 - np.eye(4))
    return Advice(tuple(runs), Regret(np.arange(4), 4, difference, np.ones(4)), {K: cost(K) for K in losses}, clients=4)


def test_the_least_is_named_with_what_one_less_would_cost() -> None:
    found = advice({1: [1.0, 1.0], 2: [0.4, 0.4], 3: [0.4, 0.4]})
    why, stable, costs, theory = found.sentences()
    assert why.startswith("Take K = 2: the best run with so many models in use has a mean validation loss of 0.400, ")
    assert "with 1 it is 1.000" in why
    assert "largest K tried" not in why
    assert stable.startswith("The choice is stable: it is the same without any one of the 2 seeds. 2 of 6 runs use 2, ")
    assert costs == "A round costs a client 2 MB up, 4 MB down and 10 steps."
    assert "1 on average" in theory
    assert "(1 − K/M) times that, 0.5" in theory


def test_what_is_not_stable_or_at_the_end_is_said() -> None:
    found = advice({1: [1.0, 0.1], 3: [0.2, 0.2]})
    assert found.without == {0: 1, 1: 3}
    assert found.alone == found.values()["single_seed"] == {0: 3, 1: 1}
    assert found.decision.chosen == 1
    assert "The choice is not stable: without seed 1 it would be 3" in found.sentences()[1]
    largest = advice({1: [1.0], 3: [0.2]})
    assert "It is the largest K tried: more may be better still (--ks 1-4)" in largest.sentences()[0]
    assert "One seed only" in largest.sentences()[1]
    assert largest.without == {}


def test_a_number_that_was_not_tried_has_no_cost() -> None:
    assert "was not tried" in advice({1: [1.0], 4: [0.2]}, in_use=2).sentences()[2]


def test_the_coverage_bound_by_hand() -> None:
    assert advice({1: [1.0], 2: [0.4]}).coverage(1) == pytest.approx(0.75)
    alike = advice({1: [1.0], 2: [0.4]}, regrets=-1.0)  # others' models are better: nothing to cover
    assert alike.coverage(1) == 0
    assert "others' models serve it better than its own" in alike.sentences()[3]


def test_values_are_plain() -> None:
    values = advice({1: [1.0, 1.0], 2: [0.4, 0.6]}).values()
    assert values["chosen"] == 2
    assert values["ks"][2]["by_seed"][1]["validation_loss"] == pytest.approx(0.6)
    assert values["models_in_use"][2]["trained_with"] == {"models": 2, "seed": 0}
    assert values["heterogeneity"]["largest"] == 1.0
