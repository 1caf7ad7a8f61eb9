"""Are differences between training losses real? Samples that are never trained on answer that.

A model that has memorised a client's samples has a low loss on them, whether it suits the client or not. The client's next update
then counts mostly for this model, which lowers its loss there further. On samples that no model has been trained on, a model that
suits the client is better than the others; one that has memorised its training samples is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

ENOUGH = 0.5  # the slope from which on differences count in full: noise in training losses makes it less than 1 in any case
BELIEVED = 0.125  # of μ: differences of this size are believed half, however the samples never trained on look
MOST_ENLARGED = 100.0  # differences of less than a hundredth of μ may be rounding; and μ → ∞ stays the limit of K FedAvgs


def confirmed(losses: Tensor, unseen: Tensor, share: Tensor, mu: float, spread: float = 0.0) -> float:
    """By how much the differences between a client's training losses are multiplied: from 0 to 1, with a spread also more.

    losses: on training samples, ``[C, K]``; unseen: on samples never trained on, likewise; share: of the samples, [C]; mu: the
    smoothing, in units of loss. It is the slope of the regression, over clients and models, of the latter differences on the
    former, over ENOUGH. Differences far below μ hardly matter to weights, and without them models could not begin to
    specialise: so the slope is drawn towards 1 by (BELIEVED·μ)².

    spread: where it is above 0, μ is at most this many times the spread of the differences. Models that are nearly alike then
    part as well. Differences are divided by that smaller μ in place of μ, that is, multiplied by the ratio of the two. The spread
    is the root mean square over clients and models, after each model's mean over clients is subtracted: a model that is better
    for all clients says nothing about groups of them.
    """
    known = losses.isfinite().all(1) & unseen.isfinite().all(1)
    if not bool(known.any()):
        return 1.0
    on_trained, on_unseen = (_centred(values[known]) for values in (losses, unseen))
    part = share[known].double() / share[known].sum()
    if spread > 0 and len(part) > 1:
        on_trained, on_unseen = (values - part @ values for values in (on_trained, on_unseen))
    together, alone = ((part * (on_trained * other).mean(1)).sum() for other in (on_unseen, on_trained))
    smaller = min(mu, max(spread * float(alone) ** 0.5, mu / MOST_ENLARGED)) if spread > 0 else mu
    prior = (BELIEVED * smaller) ** 2
    return float(((together + prior) / (alone + prior) / ENOUGH).clamp(0, 1)) * (mu / smaller)


def counted(losses: Tensor, part: float) -> Tensor:
    """``losses[C, K]`` with this part of each one's difference to the client's least one; +inf stays."""
    if part == 1:
        return losses
    least = losses.amin(1, keepdim=True)
    return torch.where(losses.isfinite(), least + part * (losses - least), losses)


def _centred(values: Tensor) -> Tensor:
    values = values.double()
    return values - values.mean(1, keepdim=True)
