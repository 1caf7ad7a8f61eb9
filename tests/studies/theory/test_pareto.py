"""Pareto stationarity and optimality, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedfew.studies.theory import optimality, stationarity
from fedfew.studies.theory.pareto import distance_to_stationary, dominates, shortest_in_hull
from fedfew.studies.theory.problem import coefficients, combined, descended, descended_normalised, networks, objective, shares
from fedfew.studies.theory.quadratic import alike, drawn


def test_the_shortest_vector_of_a_hull_by_hand() -> None:
    point, p = shortest_in_hull(np.array([[1.0, 1.0], [1.0, -1.0], [5.0, 0.0]]))
    assert point == pytest.approx([1.0, 0.0])
    assert p == pytest.approx([0.5, 0.5, 0.0])
    assert distance_to_stationary(np.array([[2.0], [-1.0]])) == pytest.approx(0.0, abs=1e-12)
    assert distance_to_stationary(np.array([[2.0], [3.0]])) == pytest.approx(2.0)
    assert distance_to_stationary(np.zeros((3, 2))) == 0.0


def test_it_does_not_depend_on_the_scale() -> None:
    gradients = np.random.default_rng(0).normal(size=(4, 3)) + 2
    assert distance_to_stationary(1e-9 * gradients) == pytest.approx(1e-9 * distance_to_stationary(gradients))


def test_domination() -> None:
    assert dominates(np.array([1.0, 1.0]), np.array([1.0, 2.0]))
    assert not dominates(np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    assert not dominates(np.array([0.0, 3.0]), np.array([1.0, 2.0]))


def test_networks_gradients_are_those_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    for hidden in (0, 3):
        problem = networks(rng, 3, hidden, samples=10)
        models = rng.normal(size=(2, sum(problem.sizes)))
        step = np.zeros_like(models)
        step[1, 4] = 1e-6
        numeric = (problem.losses(models + step) - problem.losses(models - step)) / 2e-6
        assert problem.gradients(models)[:, 1, 4] == pytest.approx(numeric[:, 1], rel=1e-5)
        assert numeric[:, 0] == pytest.approx(0.0)


def test_softmax_regression_loss_by_hand() -> None:
    problem = networks(np.random.default_rng(0), 2, hidden=0)
    nothing = np.zeros((1, sum(problem.sizes)))
    assert problem.losses(nothing) == pytest.approx(math.log(3))
    assert torch.equal(problem.y, problem.y.long())


def test_the_gradient_of_g_is_the_combination() -> None:
    rng = np.random.default_rng(0)
    clients, models = drawn(rng, 4, 2), rng.normal(size=(2, 2))
    gradient = combined(clients, models, coefficients(clients, models, 0.5))
    step = np.zeros_like(models)
    step[0, 1] = 1e-6
    numeric = (objective(clients, models + step, 0.5) - objective(clients, models - step, 0.5)) / 2e-6
    assert gradient[0, 1] == pytest.approx(numeric, rel=1e-6)
    assert shares(clients, models, 0.5).sum(0) == pytest.approx(1.0)


@pytest.mark.parametrize("descend", [descended, descended_normalised])
def test_one_model_between_two_alike_clients(descend: object) -> None:
    found = descend(alike(np.array([[-1.0], [1.0]])), np.array([[0.7]]), 0.5)  # type: ignore[operator]
    assert found == pytest.approx(0.0, abs=1e-6)


def test_a_model_without_weight_has_no_gradient_but_is_not_stationary() -> None:
    between, starved = stationarity.looked_at(*stationarity.starved_by_hand())
    assert between.distance == pytest.approx(0.0, abs=1e-12)
    assert starved.weight == 0.0
    assert starved.gradient == 0.0
    assert starved.distance == 99.0  # gradients 100 and 99
    assert starved.certificate == pytest.approx(99.0)  # normalised weights see it


def test_two_models_for_two_clients_merge_from_mu_one_on() -> None:
    assert optimality.middle_of_two(2.0) == pytest.approx(0.0, abs=1e-12)
    a = optimality.middle_of_two(0.5)
    assert a == pytest.approx(math.tanh(a / 0.5))
    assert 0.95 < a < 1


def test_counter_examples_work_and_are_told_from_others() -> None:
    assert optimality.unused_model().works()
    assert optimality.used_model().works()
    not_optimal = optimality.CounterExample(alike(np.array([[0.0], [2.0]])), np.array([[0.0], [7.0]]), 1, np.array([[2.0]]))
    assert not not_optimal.works()  # it is dominated, but the set is not the best


def test_checks() -> None:
    rng = np.random.default_rng(3)
    for check in (optimality.lemma(rng, 4), optimality.replaced(rng, 40), optimality.sets(rng)):
        assert check.holds, check
    assert optimality.replaced(rng, 10).violations == 0
