"""The arithmetic of BatchNorm in plain PyTorch: every channel of a batch shifted and scaled by statistics."""

from __future__ import annotations

from torch import Tensor


def statistics(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and (biased) variance of every channel of ``x[B, C, …]`` over the samples that count, 1 in ``keep[B]`` and 0 for
    others, and of how many values."""
    keep = keep.reshape(-1, *[1] * (x.ndim - 1))
    over = [axis for axis in range(x.ndim) if axis != 1]
    values = keep.sum() * (x[0, 0].numel() if x.ndim > 2 else 1)
    mean = (x * keep).sum(over) / values
    variance = ((x - along_channels(mean, x)).square() * keep).sum(over) / values
    return mean, variance, values


def normalised(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The same with this mean and variance taken out of every channel, then times weight, plus bias."""
    scale = (variance + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    found = (x - along_channels(mean, x)) * along_channels(scale, x)
    return found if bias is None else found + along_channels(bias, x)


def along_channels(statistic: Tensor, x: Tensor) -> Tensor:
    return statistic.reshape(-1, *[1] * (x.ndim - 2))
