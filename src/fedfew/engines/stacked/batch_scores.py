"""Scores of a stack batch by batch, each batch one pass over all models, recorded where its shapes come again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap

from fedfew.engines.evaluation import EVALUATION_BATCH, ModelScores, forward, totals
from fedfew.engines.loss import shifted
from fedfew.engines.memory import allowance
from fedfew.engines.stacked.batch_norm import weighted_rows
from fedfew.engines.stacked.batches import batches_of, in_order, inputs, unranked
from fedfew.engines.stacked.traced import Traced
from fedfew.federation import Samples
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map

if TYPE_CHECKING:
    from fedfew.engines.stacked.engine import Stacked

MOST = 8 * EVALUATION_BATCH  # samples of a batch that all models share


class BatchScores:
    """What :class:`Stacked` does to score a stack that is too large for one pass."""

    def __init__(self, engine: Stacked) -> None:
        self.engine = engine
        self._recordings = Traced()

    def of_clients(self, params: Tree, samples: Samples, log_weights: Tensor | None = None) -> ModelScores:
        """Scores ``[C, S]`` of each client's own models ``params[C, S, …]``; with log_weights ``[C, S]`` those of their mixture,
        too, as the last column."""
        rank, sizes = samples.largest_first
        ranked = tree_map(lambda t: t[rank], params)
        clients, models = leaves(ranked)[0].shape[:2]
        columns = models + (log_weights is not None)
        prior = None if samples.log_prior is None else samples.log_prior[rank][:, None]  # [C, 1, classes]
        mixing = None if log_weights is None else log_weights[rank].T[..., None, None]  # [S, C, 1, 1]
        total = totals(self.engine.criterion, samples.y, clients, columns)
        for batch in batches_of(samples, rank, sizes, in_order(samples, 1), EVALUATION_BATCH, params, join_last=True):
            a = batch.clients
            outputs = self._outputs(tree_map(lambda t, a=a: t[:a], ranked), batch.x[:, 0], batch.weight[:, 0])  # [a, S, B, d]
            terms = self._terms(
                outputs.movedim(1, 0), batch.y[:, 0], _first(prior, a, 0), _first(mixing, a, 1)
            )  # [terms, S, a, B]
            weight = batch.weight[:, 0] * batch.share[:, None]
            total[:, :a] += (terms * weight).sum(-1, dtype=torch.float64).movedim(1, 2)
        loss, score = self.engine.criterion.scores(total)
        return ModelScores(unranked(loss, rank), unranked(score, rank))

    def of_everyone(self, params: Tree, samples: Samples, log_weights: Tensor | None = None) -> ModelScores:
        """The same of models ``params[1, S, …]`` that all clients share: one pass over everybody's samples."""
        clients, models = len(samples.count), leaves(params)[0].shape[1]
        rows, owner = samples.every_row
        total = totals(self.engine.criterion, samples.y, clients, models + (log_weights is not None))
        fitting = allowance(samples.y.device) // 4 // (models * self.engine._bytes_per_sample(samples))
        size = max(1, min(MOST, fitting))
        for at, who in zip(rows.split(size), owner.split(size), strict=True):
            x = inputs(samples, at)
            outputs = self._outputs(params, x[None], x.new_ones(1, len(x)))[0]  # [S, B, d]
            prior = None if samples.log_prior is None else samples.log_prior[who]
            mixing = None if log_weights is None else log_weights[who].T[..., None]
            terms = self._terms(outputs, samples.y[at], prior, mixing)  # [terms, S, B]
            total.index_add_(1, who, terms.movedim(1, 2).double())
        return ModelScores(*self.engine.criterion.scores(total / samples.count[:, None]))

    def _outputs(self, params: Tree, x: Tensor, weight: Tensor) -> Tensor:
        """``[C, S, B, d]`` of models ``[C, S, …]`` on ``x[C, B, …]``; weight ``[C, B]``: 0 for what fills a batch up."""
        names = [path for path, _ in named_leaves(params)]

        def of_one(weights: Tree, x: Tensor, weight: Tensor) -> Tensor:
            with weighted_rows(weight):
                return forward(self.engine.module, weights, x)

        def of_all(x: Tensor, weight: Tensor, *flat: Tensor) -> Tensor:
            of_models = vmap(of_one, in_dims=(0, None, None), randomness="different")
            of_clients = vmap(of_models, in_dims=(0, 0, 0), randomness="different")
            with self.engine.or_unsupported():
                return of_clients(from_named(dict(zip(names, flat, strict=True))), x, weight)

        return self._recordings.from_the_second_time(("outputs", *names), of_all, x, weight, *leaves(params))

    def _terms(self, outputs: Tensor, y: Tensor, prior: Tensor | None, mixing: Tensor | None) -> Tensor:
        """The criterion's terms ``[terms, S (+ 1), …]`` of outputs ``[S, …, B, d]`` for labels ``y[…, B]``."""
        criterion = self.engine.criterion
        outputs = shifted(outputs, prior)
        if mixing is not None:
            outputs = torch.cat([outputs, criterion.task.mixed(outputs, mixing)[None]])
        return torch.stack(list(criterion.terms(outputs, y.expand(len(outputs), *y.shape))))


def _first(tensor: Tensor | None, clients: int, axis: int) -> Tensor | None:
    return None if tensor is None else tensor.narrow(axis, 0, clients)
