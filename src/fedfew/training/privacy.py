"""Differential privacy of clients: what the server's models reveal of any one client is limited by (ε, δ).

One round is one Gaussian mechanism on a sum over clients (docs/privacy.md). Client i contributes the vector of all K updates,
each times w[i, k], how much the model counts among the client's own. w follows from the client's own losses alone, so the losses
are part of the mechanism, and nothing else is made of them. The vector is shortened to norm ``dp_clip``. The server adds noise
of standard deviation ``dp_noise · dp_clip`` to the sum and divides by the expected number of clients, q·M, a constant. Clients
are drawn independently with probability q, so that the accountant's amplification by sampling holds.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew import random_streams
from fedfew.config import TrainConfig
from fedfew.methods import IFCA, FedAvg, FedFew, Method
from fedfew.stack import Tree, branch, from_named, leaves, named_leaves, tree_map
from fedfew.util.extras import install_command
from fedfew.weighted_mean import WeightedMean

if TYPE_CHECKING:
    from fedfew.training.run import Run

Noise = Callable[[int, int], Tensor]
"""(number of a tensor, how many numbers) → standard normal numbers."""


def check(config: TrainConfig, method: Method) -> None:
    """Refuse what the guarantee would not hold for."""
    if config.dp_noise == 0:
        return
    if not adds_the_mean(method):
        raise ValueError(
            f"dp_noise is {config.dp_noise:g}, but {method.name} as it is set does more with updates than adding their mean, "
            "which the accounting does not cover. Use fedavg, fedprox, ifca, ditto, apfl, or fedfew with share='none', "
            "scale_free=True and no preference"
        )
    if config.aggregator != "mean":
        raise ValueError(f"aggregator must be mean where dp_noise is set, not {config.aggregator!r}: the noise is made for a sum")
    if config.restart_unused:
        raise ValueError("restart_unused must be 0 where dp_noise is set: it looks at single clients' losses")
    if config.validates:
        raise ValueError("early_stopping must be 0 and keep must be last where dp_noise is set: scores are not private")
    epsilon(config, 1)  # an error where the package is missing, before anything is trained


def adds_the_mean(method: Method) -> bool:
    """Is the server's new state its old one plus the mean of the updates?"""
    inner = method
    while isinstance(getattr(inner, "method", None), Method):  # a method may wrap another one
        inner = inner.method  # type: ignore[attr-defined]  # just checked
    if isinstance(inner, FedFew):  # a weight must not depend on the other clients, as n_i / Σ_j n_j does
        of_itself = inner.scale_free or not inner.weigh_samples
        return inner.share == "none" and inner.preference is None and of_itself
    return type(inner).aggregate in (FedAvg.aggregate, IFCA.aggregate) and type(inner).log_weights in (
        Method.log_weights,
        IFCA.log_weights,
    )


def notes(config: TrainConfig, clients: int, simulated: bool) -> list[str]:
    """What a user must know, one line each."""
    if config.dp_noise == 0:
        return []
    from_seed = (
        "dp_noise: noise and drawn clients follow from the seed, so anyone who knows the seed can remove the noise. A run on "
        "Flower draws both from the operating system"
    )
    lines = [from_seed] if simulated else []
    if config.dp_delta >= 1 / clients:
        lines.append(f"dp_delta is {config.dp_delta:g}, too much for {clients} clients: it should be well below 1 / clients")
    return lines


class PrivateMean:
    """:meth:`add` updates with their weights, then :meth:`combine` them to a mean with noise. ``like`` is the server's state."""

    def __init__(self, config: TrainConfig, like: Tree, clients: int, noise: Noise) -> None:
        self.clip, self.deviation = config.dp_clip, config.dp_noise * config.dp_clip
        self.expected = config.participation * clients
        self.noise = noise
        self.models = len(leaves(like)[0])
        self._sum = tree_map(lambda t: torch.zeros_like(t, dtype=_summed_type(t)), like)

    def add(self, clients: Tensor, log_weights: Tensor, log_whole: Tensor | None, update: Tree) -> None:
        contributions = contribution(update, log_weights.softmax(1), self.clip)
        self._sum = tree_map(lambda total, part: total + part.sum(0).to(total), self._sum, contributions)

    def combine(self) -> WeightedMean:
        noisy: dict[str, Tensor] = {}
        for number, (path, total) in enumerate(named_leaves(self._sum)):
            noisy[path] = total
            if total.is_floating_point():
                noise = self.noise(number, total.numel()).reshape(total.shape).to(total)
                noisy[path] = (total + self.deviation * noise) / self.expected
        mean = WeightedMean(self.models)
        weight = torch.full((1, self.models), math.log(self.expected), dtype=torch.float64)
        mean.add(weight, tree_map(lambda t: t[None], from_named(noisy)), weight[:, 0])  # each model is a whole of its own
        return mean

    def parts(self) -> Tree:
        """What another process needs to :meth:`merge` this with its own."""
        return {"sum": self._sum}

    def merge(self, parts: Tree) -> None:
        """Take in what other clients sent."""
        self._sum = tree_map(lambda total, part: total + part.to(total.device), self._sum, branch(parts, "sum"))


def contribution(update: Tree, w: Tensor, clip: float) -> Tree:
    """w[i, k] · update[i, k] of each client, ``[C, K, …]``, all K together no longer than ``clip``; whole numbers count as 0.

    Half precision becomes float32: rounded to 8 or 11 bits, contributions and their sum would be beyond the clip.
    """

    def weighted(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t.new_zeros(len(t), w.shape[1], *t.shape[2:])
        t = t.to(_summed_type(t))
        return w.to(t).reshape(*w.shape, *[1] * (t.ndim - 2)) * t

    def shortened(t: Tensor) -> Tensor:
        """Multiplied in double precision: of a forged update the scale may be too small for the update's own."""
        return (t * scale.reshape(-1, *[1] * (t.ndim - 1))).to(t.dtype) if t.is_floating_point() else t

    parts = tree_map(weighted, update)
    squares = [t.double().flatten(1).square().sum(1) for t in leaves(parts) if t.is_floating_point()]
    scale = (clip / torch.stack(squares).sum(0).sqrt().clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
    return tree_map(shortened, parts)


def _summed_type(t: Tensor) -> torch.dtype:
    return torch.promote_types(t.dtype, torch.float32) if t.is_floating_point() else t.dtype


# -- random numbers -----------------------------------------------------------------------------------------------------------


def counted_noise(seed: int, round: int) -> Noise:
    """Noise that follows from the seed, for simulations."""
    key = int(random_streams.count(random_streams.DP_NOISE, seed, round))
    return lambda number, count: random_streams.normal(key, number, torch.arange(count))


def secret_noise(number: int, count: int) -> Tensor:
    """Noise from the operating system's generator, by Box and Muller."""
    bits = np.frombuffer(os.urandom(16 * count), dtype=np.uint64).reshape(2, count) >> 11
    return random_streams.box_muller(*(torch.from_numpy(part.astype(np.float64)) for part in bits))


def drawn(seed: int, round: int, clients: Tensor, share: float) -> Tensor:
    """Positions of the clients of a round, each drawn by itself with probability ``share``; it may be none."""
    if share >= 1:
        return torch.arange(len(clients))
    key = random_streams.count(random_streams.PARTICIPATION, seed, round)
    return (random_streams.uniform(key, clients.cpu()) < share).nonzero()[:, 0]


def secretly_drawn(clients: int, share: float) -> Tensor:
    """The same by the operating system's generator."""
    system = random.SystemRandom()
    return torch.tensor([i for i in range(clients) if share >= 1 or system.random() < share], dtype=torch.int64)


# -- accounting ---------------------------------------------------------------------------------------------------------------


def epsilon(config: TrainConfig, rounds: int) -> float:
    """ε after so many rounds at ``dp_delta``, for adding or removing one client: by Rényi differential privacy, a bound."""
    orders, of_one_round = _rdp(config.dp_noise, config.participation)
    from dp_accounting import rdp

    found, _ = rdp.compute_epsilon(orders, rounds * of_one_round, config.dp_delta)
    return float(found)


@lru_cache(maxsize=64)
def _rdp(noise: float, share: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Orders, and the Rényi divergence of one round at each."""
    try:
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"dp_noise needs the package dp-accounting, which computes ε: {install_command('privacy')}", name=error.name
        ) from error
    one = GaussianDpEvent(noise)
    accountant = rdp.RdpAccountant()
    with _quiet():  # orders that it cannot compute are left out of the minimum
        accountant.compose(one if share >= 1 else PoissonSampledDpEvent(share, one))
    return np.asarray(accountant.orders, dtype=np.float64), np.asarray(accountant.rdp, dtype=np.float64)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of absl's log, which dp-accounting writes to. The first of them, shown or not, would give Python's root
    logger a handler, if it has none, and from then on lines of other logs are printed by that as well (Flower's came twice)."""
    from absl import logging as absl_logging

    before, handler = absl_logging.get_verbosity(), logging.NullHandler()
    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        absl_logging.set_verbosity(before)


def guarantee(run: Run) -> dict[str, float] | None:
    """What holds of a run's models: ε, δ, and what they follow from; None without differential privacy."""
    if not run.settings.get("dp_noise"):
        return None
    config, history = TrainConfig.taken_from(run.settings, engine="auto"), run.history  # a network's is "flower"
    recorded = len(history) > 0 and int(history.last("round")) == run.round
    return {
        "epsilon": float(history.last("epsilon")) if recorded else epsilon(config, run.round),
        "delta": config.dp_delta,
        "noise": config.dp_noise,
        "clip": config.dp_clip,
        "participation": config.participation,
        "rounds": run.round,
    }
