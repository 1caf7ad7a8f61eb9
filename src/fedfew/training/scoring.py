"""How well a client is served: its choice among candidate models, or their mixture, scored on its test data.

The simulator and a site on Flower both score here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.config import TrainConfig
from fedfew.engines import Engine
from fedfew.engines.evaluation import ModelScores
from fedfew.federation import Samples
from fedfew.local import best_model, mixture_weights
from fedfew.stack import Tree, leaves


@dataclass(frozen=True)
class ServedScores:
    """Of C clients, on the CPU: which candidate fits each best, and the test scores of what it uses."""

    choice: Tensor  # [C]
    score: Tensor  # [C]: accuracy, R², … of the chosen model or, with serve="mixture", of the mixture
    loss: Tensor
    single_score: Tensor | None = None  # [C]: of the chosen model alone, where a mixture is served
    mixture: Tensor | None = None  # [C, S]: the candidates' weights in it


def score(
    engine: Engine, candidates: Tree, own_data: Samples, test: Samples, config: TrainConfig, learned: Tensor | None = None
) -> ServedScores:
    """Scores of candidates ``[1 or C, S, …]``; own_data: the samples that a client chooses and weighs candidates by; learned: the
    weights ``[C, S]`` of a mixture, where the method learns them."""
    if by_loss(candidates, learned):
        return scores_by_loss(engine, [candidates], own_data, test, config)[0]
    choice, mixture = choose(engine, candidates, own_data, config, learned)
    if mixture is None or mixture.shape[1] == 1:
        return _of_choice(choice, engine.score(candidates, test), mixture)
    mixed, single = engine.score_mixture(candidates, test, mixture.to(test.y.device))
    of_choice = single.score.cpu()[torch.arange(len(choice)), choice]
    return ServedScores(choice, mixed.score[:, 0].cpu(), mixed.loss[:, 0].cpu(), of_choice, mixture)


def by_loss(candidates: Tree, learned: Tensor | None) -> bool:
    """Does a client choose or weigh these candidates by their losses on its own data?"""
    return leaves(candidates)[0].shape[1] > 1 and learned is None


def scores_by_loss(
    engine: Engine, several: Sequence[Tree], own_data: Samples, test: Samples, config: TrainConfig
) -> list[ServedScores]:
    """:func:`score` of several sets of candidates of the same clients, who go :func:`by_loss`; in one pass where possible."""
    if config.serve != "mixture":
        chosen = engine.chosen_scores(several, own_data, test)
        return [ServedScores(choice.cpu(), scores.score.cpu(), scores.loss.cpu()) for choice, scores in chosen]
    return [
        ServedScores(of.choice.cpu(), of.mixed.score.cpu(), of.mixed.loss.cpu(), of.single.cpu(), of.weights.cpu())
        for of in engine.weighed_scores(several, own_data, test, config.temperature)
    ]


def _of_choice(choice: Tensor, scores: ModelScores, mixture: Tensor | None) -> ServedScores:
    """mixture: of one candidate, with serve="mixture"."""
    value, loss = (t.cpu().gather(1, choice[:, None])[:, 0] for t in (scores.score, scores.loss))
    return ServedScores(choice, value, loss, None if mixture is None else value, mixture)


def choose(
    engine: Engine, candidates: Tree, own_data: Samples, config: TrainConfig, learned: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Per client the candidate with the least loss on its own data ``[C]`` and, with serve="mixture", the weights ``[C, S]``.
    Where weights were learned: the candidate with the largest one, and the weights."""
    if learned is not None:
        return learned.argmax(1).cpu(), learned.cpu().float()
    clients, models = len(own_data.count), leaves(candidates)[0].shape[1]
    if models == 1:
        return torch.zeros(clients, dtype=torch.int64), torch.ones(clients, 1) if config.serve == "mixture" else None
    losses = engine.losses(candidates, own_data).cpu()
    return best_model(losses), mixture_weights(losses, config.temperature) if config.serve == "mixture" else None
