"""Quadratic clients: what can be worked out by hand, and the exact search against trying every assignment."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedfew.studies.theory.quadratic import Quadratics, alike, drawn, simplex


def test_two_clients_on_a_line_by_hand() -> None:
    clients = Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [4.0]]))
    assert clients.losses(np.array([[2.0]])) == pytest.approx(np.array([[2.0], [6.0]]))  # ½·1·2², ½·3·2²
    assert clients.gradients(np.array([[2.0]]))[:, 0, 0] == pytest.approx([2.0, -6.0])
    assert clients.group_optimum([0, 1]) == pytest.approx([3.0])  # (1·0 + 3·4) / (1 + 3)
    assert clients.delta_het() == pytest.approx(24.0)  # client 1 with client 0's optimum: ½·3·4²
    assert clients.mean_regret() == pytest.approx(16.0)  # mean of 8 and 24
    one, two = clients.best_sets()
    assert clients.gap(one) == pytest.approx((4.5 + 1.5) / 2)
    assert clients.gap(two) == pytest.approx(0.0)


def test_simplex_gaps_by_hand() -> None:
    """A group of m unit vectors has Σ‖e_i − mean‖² = m − 1, so every partition into K groups costs ½(M − K)."""
    clients = simplex(5)
    assert clients.delta_het() == pytest.approx(1.0)
    for K, models in enumerate(clients.best_sets(), start=1):
        assert clients.gap(models) == pytest.approx(0.5 * (1 - K / 5))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_exact_search_finds_what_trying_every_assignment_finds(seed: int) -> None:
    clients = drawn(np.random.default_rng(seed), 5, 2)
    for K, models in enumerate(clients.best_sets(), start=1):
        least = np.inf
        for assignment in product(range(K), repeat=5):
            total = 0.0
            for k in set(assignment):
                group = [i for i in range(5) if assignment[i] == k]
                total += clients.losses(clients.group_optimum(group)[None])[group].sum()
            least = min(least, total / 5)
        assert len(models) == K
        assert clients.gap(models) == pytest.approx(least)


def test_groups_are_drawn_near_their_centres() -> None:
    clients = drawn(np.random.default_rng(0), 6, 2, groups=2, spread=0.0)
    assert clients.optimum[0] == pytest.approx(clients.optimum[2])
    assert clients.gap(clients.best_sets()[1]) == pytest.approx(0.0, abs=1e-12)
    assert alike(np.zeros((2, 3))).curvature.shape == (2, 3, 3)
