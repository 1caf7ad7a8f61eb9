"""What the clients of a federation are served: scores of all of them, and the model that each would use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.config import TrainConfig
from fedfew.engines import Engine
from fedfew.federation import Federation, Samples
from fedfew.methods import Method
from fedfew.stack import Tree, everyone, is_everyone, take
from fedfew.training import own_metrics
from fedfew.training.attack import without_attackers
from fedfew.training.distributed import Group
from fedfew.training.per_client import PerClient
from fedfew.training.scoring import ServedScores, by_loss, choose, score, scores_by_loss


@dataclass(frozen=True)
class Adapted:
    """What a round's local training made of the models, and where their scores are to be put."""

    models: Tree  # [M, S, …]
    mixture: Tensor | None
    scores: PerClient


@dataclass(frozen=True)
class Serving:
    """Scores ``chunk`` clients at a time; a group of processes splits the clients among them."""

    federation: Federation
    method: Method
    engine: Engine
    config: TrainConfig
    chunk: int
    group: Group
    metrics: Mapping[str, own_metrics.Metric]

    @property
    def own_data(self) -> Samples:
        """The samples by which a client chooses and weighs models."""
        return self.federation.val or self.federation.train

    def score(self, candidates: Tree, clients: Tensor, on: Samples, learned: Tensor | None) -> ServedScores:
        """Scores, on these samples, of the candidates of these clients; learned: the weights of a mixture, or None."""
        scores = score(self.engine, candidates, self.own_data.take(clients), on.take(clients), self.config, learned)
        return without_attackers(scores, self.method, self.federation.ids[clients])

    def everyone_at_once(self, clients: Tensor) -> bool:
        """Are these all clients, and few enough to be scored at once?"""
        few = self.group.size == 1 and len(self.federation) <= self.chunk
        return few and is_everyone(clients, len(self.federation))

    def scores(self, server: Tree, own: Tree, on: Samples, adapted: Adapted | None = None) -> PerClient:
        """Scores, on these samples, of the model that every client, present or not, would be served now.

        adapted: to be scored in the same pass, where :meth:`everyone_at_once` holds.
        """
        number = len(self.federation)
        scores = PerClient(number)
        for clients in chunks(self.group.share(everyone(number), self.federation.train.sizes), self.chunk):
            candidates = self.method.candidates(server, own, clients)
            learned = self._learned(own, clients)
            if adapted is None:
                found = self.score(candidates, clients, on, learned)
            else:
                found, of_adapted = self._both(candidates, adapted, clients, on, learned)
                adapted.scores.put(clients, of_adapted)
            scores.put(clients, found)
            scores.put_values(clients, own_metrics.scores(self.metrics, self.engine, candidates, on.take(clients), found))
        first, *others = self.group.everyones(scores)
        for other in others:
            first.merge(other)
        first.assign(self.method.assigned(server))
        return first

    def _both(
        self, candidates: Tree, adapted: Adapted, clients: Tensor, on: Samples, learned: Tensor | None
    ) -> tuple[ServedScores, ServedScores]:
        if not (by_loss(candidates, learned) and by_loss(adapted.models, adapted.mixture)):
            return self.score(candidates, clients, on, learned), self.score(adapted.models, clients, on, adapted.mixture)
        several = [candidates, adapted.models]
        found = scores_by_loss(self.engine, several, self.own_data.take(clients), on.take(clients), self.config)
        served, after_training = (without_attackers(scores, self.method, self.federation.ids[clients]) for scores in found)
        return served, after_training

    def choices(self, server: Tree, own: Tree) -> tuple[Tensor, Tensor | None]:
        """Which model every client would use now, and the weights of its mixture, where one is served.

        Each process computes it alone: a run that is stopped may have lost the others, and every process holds the states of all
        clients.
        """
        parts = []
        for clients in torch.arange(len(self.federation)).split(self.chunk):
            candidates = self.method.candidates(server, own, clients)
            parts.append(choose(self.engine, candidates, self.own_data.take(clients), self.config, self._learned(own, clients)))
        mixtures = [mixture for _, mixture in parts if mixture is not None]
        assigned = self.method.assigned(server)
        found = torch.cat([choice for choice, _ in parts])
        choice = found if assigned is None else assigned.cpu().clone()  # a file holds no two tensors that share their memory
        return choice, torch.cat(mixtures) if mixtures else None

    def _learned(self, own: Tree, clients: Tensor) -> Tensor | None:
        """The weights of a mixture, where the method learns them."""
        return self.method.mixture(take(own, clients.to(self.federation.train.y.device)))


def chunks(clients: Tensor, size: int) -> tuple[Tensor, ...]:
    """So many clients at a time; of none, none."""
    if clients.shape[0] <= size:
        return (clients,) if clients.shape[0] else ()
    return clients.split(size)
