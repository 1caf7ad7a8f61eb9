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


def confirmed(losses: Tensor, unseen: Tensor, share: Tensor, mu: float) -> float:
    """Which part of the differences between a client's training losses counts, from 0 to 1.

    losses: on training samples, ``[C, K]``; unseen: on samples never trained on, likewise; share: of the samples, [C]; mu: the
    smoothing, in units of loss. It is the slope of the regression, over clients and models, of the latter differences on the
    former, over ENOUGH. Differences far below μ hardly matter to weights, and without them models could not begin to
    specialise: so the slope is drawn towards 1 by (BELIEVED·μ)².
    """
    known = losses.isfinite().all(1) & unseen.isfinite().all(1)
    if not bool(known.any()):
        return 1.0
    on_trained, on_unseen = (_centred(values[known]) for values in (losses, unseen))
    part = share[known].double() / share[known].sum()
    prior = (BELIEVED * mu) ** 2
    together, alone = ((part * (on_trained * other).mean(1)).sum() for other in (on_unseen, on_trained))
    return float(((together + prior) / (alone + prior) / ENOUGH).clamp(0, 1))


def counted(losses: Tensor, part: float) -> Tensor:
    """``losses[C, K]`` with this part of each one's difference to the client's least one; +inf stays."""
    if part == 1:
        return losses
    least = losses.amin(1, keepdim=True)
    return torch.where(losses.isfinite(), least + part * (losses - least), losses)


def _centred(values: Tensor) -> Tensor:
    values = values.double()
    return values - values.mean(1, keepdim=True)
