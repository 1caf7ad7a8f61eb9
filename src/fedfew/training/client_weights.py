"""What one client can gain by the losses that it reports: losses are bounded, and its share of the weights is capped.

Methods such as FedFew give more weight to clients with higher losses. Without a limit, a client that reports a loss of 1000 has
all the weight of a round.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedfew.weighted_mean import normalised

FLOOR = 3.0  # of n clients, one may always have 3/n of the weights: in small federations honest clients reach 0.63


def bounded(losses: Tensor, bound: float | None) -> Tensor:
    """``losses[C, K]``, each client's lowered by one number where its least loss exceeds the bound; None: there is none.

    Differences between a client's models stay, and with them the model that it prefers.
    """
    if bound is None:
        return losses
    least = losses.amin(1, keepdim=True)
    if not bool((least > bound).any()):  # as in nearly every round
        return losses
    excess = (least - bound).clamp_min(0)
    return torch.where(losses.isfinite(), losses - excess, losses)


def median_of(least: Tensor) -> float:
    """The median over clients of the least loss they reported; of two in the middle the lower one, which is a reported value."""
    return float(least.median())


@lru_cache(maxsize=1)  # of a tensor the identity counts: where everyone takes part, the loop has the same one in every round
def caps(most_share: float, share: Tensor) -> Tensor:
    """The largest share of a round's weights per client, [M]; share: n_i / Σ_j n_j of the clients that the round began with.

    It is ``most_share``, or the client's share of the samples, or 3/n, whichever is most.
    """
    of_all = max(most_share, FLOOR / max(1, int((share > 0).sum())))
    return share.double().clamp_min(of_all).clamp_max(1.0)


def log_factors(log_alpha: Tensor, most: Tensor) -> Tensor:
    """log of the factors [C] by which clients' weights are multiplied, so that none has more than its share ``most[C]``.

    log_alpha: log of each client's weight, but for a constant. Clients below their cap keep their weight (factor 1, log 0). What
    the others lose goes to these, in proportion to their weights. Where the caps sum to less than one, all are raised alike.
    """
    log_alpha = log_alpha.double()
    most = most.double()
    if float(normalised(log_alpha).amax()) <= float(most.amin()):  # as in nearly every round
        return torch.zeros_like(log_alpha)
    most = most.masked_fill(log_alpha == -torch.inf, 0.0)  # who has no weight can be given none
    if float(most.sum()) <= 1:
        return torch.where(most > 0, most.log() - log_alpha, 0.0)
    if not bool((normalised(log_alpha) > most * (1 + 1e-9)).any()):
        return torch.zeros_like(log_alpha)
    capped = torch.zeros(len(most), dtype=torch.bool)
    while True:  # capping one raises the others' shares, which may bring another above its cap
        left, others = 1 - float(most[capped].sum()), log_alpha[~capped]
        over = left * others.softmax(0) > most[~capped] * (1 + 1e-9)  # with room for rounding, or all might end up capped
        if not bool(over.any()):
            log_scale = math.log(left) - others.logsumexp(0)
            return torch.where(capped, most.log() - log_scale - log_alpha, 0.0)
        capped[~capped] = over
