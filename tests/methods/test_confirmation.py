"""Differences between training losses count as far as samples never trained on confirm them, worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedfew import scalarization
from fedfew.methods import FedAvg, FedFew
from fedfew.methods.confirmation import confirmed, counted
from fedfew.methods.local_norm import LocalNorm

INF, NAN = torch.inf, torch.nan
ALIKE = torch.tensor([0.5, 0.5])


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_slope_by_hand():
    # differences to the client's mean: trained (-1, 1) and (2, -2), unseen (-0.2, 0.2) and (1, -1). With shares 1/2 the mean
    # products are (0.2 + 2) / 2 = 1.1, the mean squares (1 + 4) / 2 = 2.5: a slope of 0.44, of which 0.5 is enough
    losses, unseen = rows([1, 3], [5, 1]), rows([2.0, 2.4], [4, 2])
    assert confirmed(losses, unseen, ALIKE, mu=1e-9) == pytest.approx(0.88)
    # of the first client alone, 0.2 / 1 = 0.2; with μ = 8 the prior (8/8)² = 1 is added above and below: 1.2 / 2 = 0.6
    assert confirmed(losses[:1], unseen[:1], ALIKE[:1], mu=1e-9) == pytest.approx(0.4)
    assert confirmed(losses[:1], unseen[:1], ALIKE[:1], mu=8.0) == 1.0
    # shares 3/4 and 1/4: (3 · 0.2 + 2) / (3 · 1 + 4) = 2.6 / 7
    assert confirmed(losses, unseen, torch.tensor([0.3, 0.1]), mu=1e-9) == pytest.approx(2 * 2.6 / 7)


def test_it_is_between_nothing_and_all():
    losses = rows([1, 3])
    assert confirmed(losses, rows([3, 1]), ALIKE[:1], 1e-9) == 0.0  # the opposite is true
    assert confirmed(losses, rows([1, 9]), ALIKE[:1], 1e-9) == 1.0


def test_who_cannot_tell_does_not_count():
    losses, unseen = rows([1, 3], [5, 1], [1, INF]), rows([2.0, 2.4], [NAN, NAN], [1, 0])
    share = torch.tensor([0.4, 0.3, 0.3])
    assert confirmed(losses, unseen, share, 1e-9) == pytest.approx(0.4)
    assert confirmed(losses[1:], unseen[1:], share[1:], 1e-9) == 1.0  # nobody can


def test_what_counts_by_hand():
    losses = rows([1, 3, 2], [5, 1, INF])
    assert torch.equal(counted(losses, 0.25), rows([1, 1.5, 1.25], [2, 1, INF]))
    assert torch.equal(counted(losses, 0.0), rows([1, 1, 1], [1, 1, INF]))
    assert counted(losses, 1.0) is losses


def test_the_smoothing_is_in_units_of_loss():
    losses, unseen = rows([1, 3], [1, 3]), rows([2.0, 2.0], [2, 2])  # slope 0: the prior alone, x / (1 + x)
    scale_free = FedFew(mu=8 / 3).confirmed(losses, unseen, ALIKE)  # x = (1/3)²
    assert scale_free == pytest.approx(2 * 0.1)
    assert FedFew(mu=4 / 3, scale_free=False).confirmed(losses, unseen, ALIKE) == scale_free  # n_i/N is 1/2
    assert FedFew(mu=8 / 3, scale_free=False, weigh_samples=False).confirmed(losses, unseen, ALIKE) == scale_free
    assert LocalNorm(FedFew(mu=8 / 3), ()).confirmed(losses, unseen, ALIKE) == scale_free
    assert FedAvg().confirmed(losses, unseen, ALIKE) == 1.0
    wide = FedFew(mu=8 / 3).confirmed(losses, rows([1, 3], [3, 1]), ALIKE, 1e-3)
    assert LocalNorm(FedFew(mu=8 / 3), ()).confirmed(losses, rows([1, 3], [3, 1]), ALIKE, 1e-3) == wide


def test_a_spread_smaller_than_the_smoothing_takes_its_place():
    # the differences above, (-1, 1) and (2, -2), have the means (0.5, -0.5) over clients, without which they are (-1.5, 1.5) and
    # (1.5, -1.5): the spread is 1.5. Unseen: (-0.2, 0.2) and (1, -1), without (0.4, -0.4): (-0.6, 0.6) and (0.6, -0.6)
    losses, unseen = rows([1, 3], [5, 1]), rows([2.0, 2.4], [4, 2])
    assert confirmed(losses, unseen, ALIKE, mu=1e-9, spread=1.0) == pytest.approx(2 * 0.9 / 2.25)  # μ is below it
    prior = (1.5 / 8) ** 2
    assert confirmed(losses, unseen, ALIKE, mu=30.0, spread=1.0) == pytest.approx(20 * 2 * (0.9 + prior) / (2.25 + prior))
    prior = (3 / 8) ** 2
    assert confirmed(losses, unseen, ALIKE, mu=30.0, spread=2.0) == pytest.approx(10 * 2 * (0.9 + prior) / (2.25 + prior))
    assert confirmed(losses, rows([2.4, 2.0], [2, 4]), ALIKE, mu=1.0, spread=1.0) == 0.0  # the opposite is true
    # shares 3/4 and 1/4: means (-0.25, 0.25), and (0.1, -0.1) on unseen samples, which leave (-0.75, 0.75) and (2.25, -2.25),
    # (-0.3, 0.3) and (0.9, -0.9): products (3 · 0.225 + 2.025) / 4, squares (3 · 0.5625 + 5.0625) / 4
    assert confirmed(losses, unseen, torch.tensor([0.3, 0.1]), 1e-9, 1.0) == pytest.approx(2 * 2.7 / 6.75)


def test_a_model_that_is_better_for_all_clients_does_not_count_for_the_spread():
    shifted = rows([1, 3 + 7], [5, 1 + 7])
    unseen = rows([2.0, 2.4 - 9], [4, 2 - 9])
    alike = confirmed(rows([1, 3], [5, 1]), rows([2.0, 2.4], [4, 2]), ALIKE, 30.0, 1.0)
    assert confirmed(shifted, unseen, ALIKE, 30.0, 1.0) == pytest.approx(alike)
    alone = confirmed(rows([1, 3]), rows([2.0, 2.4]), ALIKE[:1], 1e-9, 1.0)
    assert alone == pytest.approx(0.4)  # of one client nothing is subtracted


def test_rounding_is_not_enlarged_without_limit_and_a_large_smoothing_stays_one():
    losses, unseen = rows([1, 3], [5, 1]), rows([1.0, 3], [5, 1])
    assert confirmed(losses, unseen, ALIKE, mu=1e6, spread=1.0) == 100.0
    w = scalarization.weights(counted(losses, 100.0), 1e6)[1]
    assert (w - 0.5).abs().max() < 1e-3  # K FedAvgs
    assert confirmed(rows([1, 1]), rows([2.0, 2.0]), ALIKE[:1], 0.2, 1.0) == 100.0  # of differences that are 0


def test_the_enlargement_does_not_depend_on_the_unit_of_loss_nor_on_the_fall_of_the_smoothing():
    losses, unseen = rows([0.01, 0.03], [0.05, 0.01]), rows([0.02, 0.024], [0.04, 0.02])

    def weights(unit: float, fall: float = 1.0) -> torch.Tensor:
        method = FedFew(mu=0.2)
        factor = method.confirmed(unit * losses, unit * unseen, ALIKE, 1.0)
        return scalarization.weights(counted(unit * losses, factor), method.smoothed(fall).mu)[1]

    # differences / spread: the first client's are 0.02 / 0.015, of which 2 · slope = 0.8 and a little count
    prior = (0.015 / 8) ** 2
    part = 2 * (0.9e-4 + prior) / (0.015**2 + prior)
    assert weights(1.0)[0, 1] == pytest.approx(1 / (1 + math.exp(part * 0.02 / 0.015)))
    torch.testing.assert_close(weights(3.0), weights(1.0))
    assert weights(1.0, 0.25)[0, 1] == pytest.approx(1 / (1 + math.exp(part * 0.02 / 0.015 / 0.25)))


def test_which_methods_check():
    assert FedFew().checks_losses
    assert LocalNorm(FedFew(), ()).checks_losses
    assert not any(method.checks_losses for method in (FedFew(models=1), FedFew(share="body"), FedAvg()))
