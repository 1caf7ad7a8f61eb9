"""What is measured: each client's loss on samples held out from its training data, and how much clients differ (Δ_het)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew import engines
from fedfew.data import split
from fedfew.engines import LocalTraining
from fedfew.federation import Federation, Samples
from fedfew.stack import Tree, tensor, to, tree_map

if TYPE_CHECKING:
    from fedfew.training.run import Run

Array = NDArray[np.float64]
MOST_CLIENTS = 100  # whose models are tried on each other's data; of more, so many are drawn


def held_out(federation: Federation, share: float = 0.2, seed: int = 0) -> Federation:
    """The federation with validation samples where its test samples were: those are not in it any more.

    They are its third split, where it has one; else so large a share of every client's training samples, drawn by the seed.
    """
    if not 0 < share < 1:
        raise ValueError(f"hold_out must lie between 0 and 1, not {share}")
    if federation.val is not None:
        return replace(federation, test=federation.val, val=None)
    return held_out_of_training(federation, share, seed)


def held_out_of_training(federation: Federation, share: float, seed: int) -> Federation:
    """The federation with a share of every client's training samples where its test samples were. A third split stays."""
    train = federation.train
    rng = np.random.default_rng([seed, 2])
    order, start, kept, moved = [], [], [], []
    begin = 0
    for i in range(len(federation)):
        rows = train.rows(i).cpu()
        away, _ = split.amounts(len(rows), share, 0.0, f"client {federation.ids[i]}")
        order.append(rows[torch.from_numpy(rng.permutation(len(rows)))])
        start.append(begin)
        moved.append(away)
        kept.append(len(rows) - away)
        begin += len(rows)
    at = torch.cat(order)
    x, y = train.x[at.to(train.x.device)], train.y[at.to(train.y.device)]  # a client's validation samples come first

    def part(first: list[int], count: list[int]) -> Samples:
        begins, counts = (torch.tensor(numbers, device=train.count.device) for numbers in (first, count))
        return replace(train, x=x, y=y, start=begins, count=counts, longest=max(count))

    behind = [begin + away for begin, away in zip(start, moved, strict=True)]
    return replace(federation, train=part(behind, kept), test=part(start, moved))


@dataclass(frozen=True)
class Observed:
    """One run with K models: numbers of the model that each client is served, [M]."""

    models: int
    seed: int
    validation: Array  # loss on held-out samples
    score: Array  # accuracy, R², … on the same
    training: Array  # loss on the training samples, in evaluation mode
    in_use: int  # models that at least one client uses


def observed(run: Run, federation: Federation) -> Observed:
    """Of a finished run on what :func:`held_out` returned."""
    everyone = torch.arange(len(federation))
    training = _served_losses(run, _candidates(run, everyone), _as_seen(run, federation.train))
    return Observed(
        models=run.method.settings().get("models", 1),
        seed=run.settings["seed"],
        validation=run.scored("served_loss").astype(np.float64),
        score=run.scores("served").astype(np.float64),
        training=training,
        in_use=len(torch.unique(run.choice)),
    )


@dataclass(frozen=True)
class Regret:
    """L_i(θ_j) − L_i(θ_i) on held-out samples, θ_j being what client j learns alone: an estimate of L_i(θ_j*) − L_i(θ_i*).

    Both losses carry noise, and a client alone may overfit, so that another's model serves it better: such entries are negative.
    They are kept as they are, for cutting them off at 0 would raise the mean.
    """

    clients: NDArray[np.int64]  # those whose models were tried on each other's data
    total: int  # of how many
    difference: Array  # [m, m]
    own: Array  # [m]: L_i(θ_i)

    @property
    def pairs(self) -> Array:
        """The entries of different clients."""
        return self.difference[~np.eye(len(self.clients), dtype=bool)]

    @property
    def largest(self) -> float:
        """The paper's Δ_het: a maximum over noisy pairs, so rather too large."""
        return float(self.pairs.max()) if len(self.pairs) else 0.0

    @property
    def mean(self) -> float:
        """The mean over pairs, which bounds the average gap as well (docs/theory.md), and is steadier."""
        return float(self.pairs.mean()) if len(self.pairs) else 0.0

    @property
    def tenth_largest(self) -> float:
        """The 90 % quantile."""
        return float(np.quantile(self.pairs, 0.9)) if len(self.pairs) else 0.0

    @property
    def negative(self) -> float:
        """The share of pairs where another's model serves a client better than its own."""
        return float((self.pairs < 0).mean()) if len(self.pairs) else 0.0


def regret(run: Run, federation: Federation, most: int = MOST_CLIENTS, seed: int = 0) -> Regret:
    """Every client's own model (of a local-only run on what :func:`held_out` returned) on every client's held-out samples."""
    total = len(federation)
    drawn = np.arange(total)
    if total > most:
        drawn = np.sort(np.random.default_rng([seed, 3]).choice(total, most, replace=False))
    clients = torch.from_numpy(drawn)
    shared = tree_map(lambda t: t.transpose(0, 1), _candidates(run, clients))  # [1, m, …]: each client's model, for all
    losses = _losses(run, shared, _as_seen(run, federation.test).take(clients))
    losses = np.where(np.isfinite(losses), losses, np.nan)  # training diverged: differences of infinite losses are none
    own = np.diagonal(losses).copy()
    return Regret(drawn, total, losses - own[:, None], own)


def _candidates(run: Run, clients: torch.Tensor) -> Tree:
    return run.method.candidates(run.state.served, run.state.own, clients)


def _served_losses(run: Run, candidates: Tree, samples: Samples) -> Array:
    """Mean loss [C] of what each client uses, one candidate or the mixture of all."""
    mixture, choice = run.state.mixture, run.choice.numpy()
    if mixture is None:
        found: Array = _losses(run, candidates, samples)[np.arange(len(choice)), choice]
        return found
    device = samples.y.device
    mixed, _ = _engine(run, device).score_mixture(to(candidates, device), samples, mixture.to(device))
    return mixed.loss[:, 0].cpu().numpy().astype(np.float64)


def _losses(run: Run, candidates: Tree, samples: Samples) -> Array:
    """Mean loss [C, S], on the samples' device."""
    device = samples.y.device
    return _engine(run, device).losses(to(candidates, device), samples).cpu().numpy().astype(np.float64)


def _engine(run: Run, device: torch.device) -> engines.Engine:
    training = LocalTraining.taken_from(run.settings, loss=run.criterion)
    return engines.Sequential(run.new_module().to(device), training, run.settings["seed"])


def _as_seen(run: Run, samples: Samples) -> Samples:
    """The samples of all clients with their label priors, where the run has any."""
    if not run.state.priors:
        return samples
    priors = tensor(run.state.priors, "log_prior").to(samples.y.device)
    return replace(samples, log_prior=priors)
