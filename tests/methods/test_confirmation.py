"""Differences between training losses count as far as samples never trained on confirm them, worked by hand."""

from __future__ import annotations

import pytest
import torch

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


def test_which_methods_check():
    assert FedFew().checks_losses
    assert LocalNorm(FedFew(), ()).checks_losses
    assert not any(method.checks_losses for method in (FedFew(models=1), FedFew(share="body"), FedAvg()))
