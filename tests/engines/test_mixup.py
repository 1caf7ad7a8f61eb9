"""Mixup: shares from a Beta distribution, and batches mixed by them."""

import math

import pytest
import torch

import fedfew
from fedfew import random_streams
from fedfew.engines import mixup
from tests.engines.small import images

U = torch.tensor([0.001, 0.1, 0.3, 0.5, 0.75, 0.999])


@pytest.mark.parametrize(
    ("alpha", "probability"),
    [
        (1.0, lambda x: x),
        (2.0, lambda x: 3 * x**2 - 2 * x**3),
        (0.5, lambda x: 2 / math.pi * x.sqrt().asin()),  # the arcsine law
        (3.0, lambda x: 10 * x**3 - 15 * x**4 + 6 * x**5),
    ],
)
def test_quantiles_of_known_distributions(alpha, probability):
    found = mixup.beta_quantile(U, alpha)
    torch.testing.assert_close(probability(found.double()).float(), U, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 1.0, 8.0, 200.0])
def test_shares_have_the_mean_and_variance_of_a_beta_distribution(alpha):
    """½ and 1/(4(2α + 1)), by the mean over evenly spaced probabilities."""
    x = mixup.beta_quantile((torch.arange(100_000) + 0.5) / 100_000, alpha).double()
    assert float(x.mean()) == pytest.approx(0.5, abs=1e-5)
    assert float(x.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=1e-3)


def test_shares_are_counted():
    key = random_streams.count(1, torch.arange(6).reshape(3, 2))
    all_steps = mixup.shares(key, 7, 0.3)
    assert all_steps.shape == (3, 2, 7)
    assert torch.equal(mixup.shares(key[1], 4, 0.3), all_steps[1, :, :4])
    assert all_steps.unique().numel() > 30


def test_a_batch_mixed_by_hand():
    x = torch.tensor([[[1.0], [2.0], [4.0], [9.0]]])
    weight = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0]])  # the fourth only fills the batch up
    mixed, y, weighs = mixup.mixed(x, torch.tensor([[0, 1, 2, 0]]), weight, torch.tensor([0.75]))
    assert mixed[0, :3, 0].tolist() == [1.25, 2.5, 3.25]
    assert y[0, :3].tolist() == [[0, 1], [1, 2], [2, 0]]
    torch.testing.assert_close(weighs[0], torch.tensor([[0.25, 1 / 12]] * 3 + [[0.0, 0.0]]))


def test_token_ids_are_refused_and_pixels_are_not():
    words = fedfew.Federation.from_arrays([(torch.tensor([[1, 2], [3, 4]]), [0, 1])], [(torch.tensor([[1, 2]]), [0])])
    with pytest.raises(ValueError, match=r"mixup is 0\.2, .* but these samples are token ids; use 0"):
        mixup.check(0.2, words.train)
    mixup.check(0.0, words.train)
    mixup.check(0.2, images().train)
