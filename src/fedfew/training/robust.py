"""Robust aggregation: other centres of a round's updates than their weighted mean, which a few false updates do not move far.

For each model k a rule sees the updates of all clients and their weights ω[i, k], normalised to sum to one over clients:

median            per coordinate, where the weights on both sides are equal (weighted median)
trimmed-mean      per coordinate, the weighted mean without the fraction ``trim`` of the weight at each end
geometric-median  the point with the least weighted sum of distances to the updates (Weiszfeld's algorithm)
krum              the one update with the least sum of squared distances to its n − f − 2 nearest others (Blanchard et al. 2017)
multi-krum        the weighted mean of the n − f updates with the least such sums
norm-bound        the weighted mean of updates, those longer than ``norm_bound`` times the median length shortened to it

Krum's distances and the median length are without weights, over the model's clients: those with at least half an even share of
its weight. Otherwise a client that does not use a model could be chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedfew.config import TrainConfig
from fedfew.stack import Tree, leaves, tree_map

STEPS, TOLERANCE = 10_000, 1e-12  # of Weiszfeld's algorithm: at most, and the change of the weights at which it ends
ROUNDING = 1e-9  # of weights, which come as logarithms
BLOCK = 1 << 22  # numbers sorted at once

Rule = Callable[[Tensor, Tensor], Tensor]


def centre(config: TrainConfig, log_weights: Tensor, update: Tree) -> Tree:
    """The centres ``[K, …]`` of updates ``[C, K or 1, …]`` by log ω ``[C, K]``; zero for a model without weight."""
    omega = log_weights.double().softmax(0).nan_to_num(0.0)
    if config.aggregator == "median":
        return tree_map(lambda t: _per_coordinate(t, omega, _median), update)
    if config.aggregator == "trimmed-mean":
        return tree_map(lambda t: _per_coordinate(t, omega, lambda x, w: _trimmed_mean(x, w, config.trim)), update)
    shares = torch.stack([_shares(config, update, omega[:, k], k) for k in range(omega.shape[1])], 1)
    return tree_map(lambda t: _weighted_sum(t, shares), update)


def _shares(config: TrainConfig, update: Tree, omega: Tensor, model: int) -> Tensor:
    """How much of each client's update [C] the centre is made of, for the rules that have centres of this form."""
    if not bool((omega > 0).any()):
        return omega
    clients = (omega >= (0.5 - ROUNDING) / len(omega)).nonzero()[:, 0]
    rows = [_of_model(t, model).reshape(len(t), -1) for t in leaves(update) if t.is_floating_point()]  # scalars, too
    if config.aggregator == "norm-bound":
        length = torch.stack([row.double().square().sum(1) for row in rows]).sum(0).sqrt().cpu()
        most = config.norm_bound * length[clients].quantile(0.5)
        return omega * (most / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp_max(1.0)
    if config.aggregator == "geometric-median":
        present = (omega > 0).nonzero()[:, 0]
        shares = geometric_median(squared_distances([row[present.to(row.device)] for row in rows]), omega[present])
        return torch.zeros_like(omega).index_copy(0, present, shares)
    scores = krum_scores(squared_distances([row[clients.to(row.device)] for row in rows]), config.assumed_attackers)
    kept = 1 if config.aggregator == "krum" else max(1, len(clients) - config.assumed_attackers)
    chosen = clients[scores.argsort(stable=True)[:kept]]
    shares = torch.zeros_like(omega).index_copy(0, chosen, omega[chosen])
    return shares / shares.sum()


def squared_distances(rows: list[Tensor]) -> Tensor:
    """‖x_i − x_j‖² [C, C] of updates that are given in parts ``[C, P]``; symmetric to the last digit. Of few clients Krum
    compares distances to the nearest one, which two that are nearest to each other share: rounding must not decide."""
    total = torch.zeros(len(rows[0]), len(rows[0]), dtype=torch.float64)
    for row in rows:
        x = row.double() - row.double().mean(0)  # close to the origin fewer digits cancel
        square = x.square().sum(1)
        total += (square[:, None] + square - 2 * x @ x.T).cpu()
    return ((total + total.T) / 2).clamp_min(0).fill_diagonal_(0)


def krum_scores(distances: Tensor, attackers: int) -> Tensor:
    """The sum [C] of squared distances to the C − attackers − 2 nearest others, of which there is at least one."""
    nearest = min(max(1, len(distances) - attackers - 2), len(distances) - 1)
    others = distances.clone().fill_diagonal_(torch.inf)
    return others.sort(1).values[:, :nearest].sum(1)


def geometric_median(distances: Tensor, omega: Tensor) -> Tensor:
    """λ [C] of the geometric median Σ_i λ_i x_i of points with these squared distances and weights ω.

    The point is a mean of the x_i, so its distances follow from theirs: ‖x_i − z‖² = (D λ)_i − λᵀ D λ / 2. Where it is one of the
    x_i, Weiszfeld's steps come close too slowly, so that is tried first.
    """
    for j in range(len(omega)):
        if _pulled(distances, omega, j) <= omega[j]:
            return torch.nn.functional.one_hot(torch.tensor(j), len(omega)).to(omega)
    shares = omega / omega.sum()
    for _ in range(STEPS):
        spread = distances @ shares
        away = (spread - shares @ spread / 2).clamp_min(0).sqrt()
        least = 1e-12 * float(distances.max()) ** 0.5  # the point may be one of them
        new = omega / away.clamp_min(least) if least > 0 else omega
        new = new / new.sum()
        if float((new - shares).abs().max()) < TOLERANCE:
            break
        shares = new
    return shares


def _pulled(distances: Tensor, omega: Tensor, j: int) -> Tensor:
    """‖Σ_i ω_i (x_i − x_j)/‖x_i − x_j‖‖ over the other points: x_j is the geometric median where this is at most its ω_j and that
    of the points equal to it."""
    away = distances[j].sqrt()
    c = torch.where(away > 0, omega / away, 0.0)
    equal = omega[(away == 0)].sum() - omega[j]
    return (c.sum() * (c @ distances[j]) - c @ distances @ c / 2).clamp_min(0).sqrt() - equal


def _per_coordinate(t: Tensor, omega: Tensor, rule: Rule) -> Tensor:
    """``t[C, K or 1, …]`` → [K, …]; rule: of sorted values and their weights, each [C, P]."""
    found = []
    for k in range(omega.shape[1]):
        flat = _of_model(t, k).reshape(len(t), -1)
        weights = omega[:, k].to(flat.device)
        parts = []
        for block in flat.split(max(1, BLOCK // len(t)), 1):
            values, order = block.sort(0)
            parts.append(rule(values.double(), weights[order]))
        found.append(torch.cat(parts).reshape(t.shape[2:]))
    return torch.stack(found).to(t.dtype if t.is_floating_point() else torch.float64)


def _median(values: Tensor, weights: Tensor) -> Tensor:
    """Halfway between the least and the largest value with half of the weight on either side."""
    below = weights.cumsum(0)
    half = weights.sum(0) / 2
    near = 1e-12 * half
    last = len(values) - 1
    low = (below < half - near).sum(0).clamp_max(last)
    high = (below <= half + near).sum(0).clamp_max(last)
    pick = torch.stack([low, high])
    middle = values.gather(0, pick).mean(0)
    return torch.where(half > 0, middle, 0.0)


def _trimmed_mean(values: Tensor, weights: Tensor, trim: float) -> Tensor:
    """A value at the edge counts with the part of its weight that is within."""
    whole = weights.sum(0)
    above = weights.cumsum(0).clamp_max((1 - trim) * whole)
    below = (weights.cumsum(0) - weights).clamp_min(trim * whole)
    kept = (above - below).clamp_min(0)
    return (kept * values).sum(0) / kept.sum(0).clamp_min(torch.finfo(kept.dtype).tiny)


def _weighted_sum(t: Tensor, shares: Tensor) -> Tensor:
    """``t[C, K or 1, …]`` and shares [C, K] → [K, …]"""
    x = t.double() if not t.is_floating_point() else t
    parts = [torch.tensordot(shares[:, k].to(x), _of_model(x, k), 1) for k in range(shares.shape[1])]
    return torch.stack(parts)


def _of_model(t: Tensor, model: int) -> Tensor:
    return t[:, model if t.shape[1] > 1 else 0]
