"""A simulated attack: which clients attack, and what they do to their data or their replies (docs/robustness.md)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.config import TrainConfig
from fedfew.federation import Federation
from fedfew.methods import Method
from fedfew.methods.attacks import Attacked
from fedfew.training.scoring import ServedScores


def hostile(config: TrainConfig, federation: Federation) -> Tensor:
    """Positions of the clients that attack, drawn by the seed; none without an attack."""
    if config.attack == "none":
        return torch.zeros(0, dtype=torch.int64)
    if config.attackers >= len(federation):
        raise ValueError(f"attackers must be less than the number of clients ({len(federation)}), not {config.attackers}")
    keys = random_streams.uniform(random_streams.count(random_streams.ATTACKERS, config.seed), federation.ids.cpu())
    return keys.argsort(stable=True)[: config.attackers].sort().values


def with_attack(config: TrainConfig, method: Method, federation: Federation) -> tuple[Method, Federation]:
    """The method and the federation with the attack that the settings ask for."""
    clients = hostile(config, federation)
    if len(clients) == 0:
        return method, federation
    if config.attack == "label-flip":
        federation = _with_flipped_labels(federation, clients)
    return Attacked(method, config.attack, tuple(federation.ids[clients].tolist())), federation


def without_attackers(scores: ServedScores, method: Method, clients: Tensor) -> ServedScores:
    """The scores of clients with these identities; attackers have none (NaN)."""
    if not isinstance(method, Attacked):
        return scores
    honest = ~torch.isin(clients.cpu(), torch.tensor(method.attackers))
    hidden = {
        name: torch.where(honest, value, torch.nan)
        for name, value in vars(scores).items()
        if name in ("score", "loss", "single_score") and value is not None
    }
    return replace(scores, **hidden)


def _with_flipped_labels(federation: Federation, clients: Tensor) -> Federation:
    """Training labels y of these clients become classes − 1 − y."""
    y = federation.train.y.clone()
    if y.is_floating_point() or y.ndim > 1:
        raise ValueError("attack is 'label-flip', which needs one class per sample: use another attack")
    for client in clients.tolist():
        rows = federation.train.rows(client)
        y[rows] = federation.classes - 1 - y[rows]
    return replace(federation, train=replace(federation.train, y=y))
