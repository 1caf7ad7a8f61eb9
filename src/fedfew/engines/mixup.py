"""Mixup (Zhang et al. 2018) with counted randomness, so that all engines mix the same samples by the same shares.

Sample j of a batch is mixed with sample j + 1, the last with the first: batches are drawn at random, so this is a random partner.
A batch has one share λ, drawn from Beta(α, α); its loss is λ·loss(labels) + (1 − λ)·loss(labels of the partners).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.federation import Samples, as_input

GRID = 8192  # intervals of the table of quantiles


def check(mixup: float, samples: Samples) -> None:
    """Refuse, naming the setting, what is not for these samples."""
    if mixup and not as_input(samples.x[:0]).is_floating_point():
        raise ValueError(f"mixup is {mixup:g}, which is for numbers that can be averaged, but these samples are token ids; use 0")


def shares(key: Tensor, steps: int, alpha: float) -> Tensor:
    """λ of each step of an epoch, ``[…, steps]``, for replicas with ``key[…]``."""
    return beta_quantile(random_streams.uniform(key[..., None], torch.arange(steps, device=key.device)), alpha)


def beta_quantile(u: Tensor, alpha: float) -> Tensor:
    """The number below which Beta(α, α) lies with probability u."""
    below, at = (torch.from_numpy(values).to(u.device) for values in _lower_half(alpha))
    p = torch.minimum(u, 1 - u).double()
    right = torch.searchsorted(below, p).clamp(1, GRID)
    within = (p - below[right - 1]) / (below[right] - below[right - 1]).clamp_min(1e-300)
    x = (at[right - 1] + within * (at[right] - at[right - 1])) ** (1 / min(alpha, 1.0))
    return torch.where(u < 0.5, x, 1 - x).float()


@lru_cache(maxsize=8)
def _lower_half(alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """P(X < x) and s(x) on a grid of x in [0, ½].

    The density is x^(α − 1)·(1 − x)^(α − 1). For α < 1 it has no bound at 0; as a density of s = x^α it has.
    """
    power = min(alpha, 1.0)
    s = np.linspace(0, 0.5**power, GRID + 1)
    x = s ** (1 / power)
    density = (4 * x * (1 - x)) ** (alpha - 1) if alpha >= 1 else (1 - x) ** (alpha - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return below / (2 * below[-1]), s


def mixed(x: Tensor, y: Tensor, weight: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A stack of batches mixed: inputs ``[R, B, …]``, two targets per sample ``[R, B, 2, …]`` and what they weigh ``[R, B, 2]``.

    weight: 0 for padding, which is never mixed with a sample; share: [R].
    """
    by = share.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    share = share.to(weight.dtype)
    two = torch.stack([share, 1 - share], -1)
    return x * by + _of_partners(x, weight) * (1 - by), of_both(y, weight), weight[..., None] * two[:, None]


def of_both(values: Tensor, weight: Tensor) -> Tensor:
    """The values ``[R, B, …]`` of samples and of their partners, ``[R, B, 2, …]``."""
    return torch.stack([values, _of_partners(values, weight)], 2)


def _of_partners(values: Tensor, weight: Tensor) -> Tensor:
    following = torch.arange(1, weight.shape[1] + 1, device=weight.device)
    partner = following.where(following < (weight > 0).sum(-1, keepdim=True), 0)
    return values.gather(1, partner.reshape(*partner.shape, *[1] * (values.ndim - 2)).expand_as(values))
