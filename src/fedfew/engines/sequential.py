"""One replica at a time, plain PyTorch: the oracle in tests and the yardstick in benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.sgd import sgd

from fedfew import random_streams
from fedfew.config import LocalTraining
from fedfew.engines.augment import augmented, black
from fedfew.engines.base import Engine, ModelScores, Pass, correct, evaluation_batches, forward, shifted, without_prior
from fedfew.engines.dropout import keyed
from fedfew.federation import Samples
from fedfew.local import Objective, Projection, Through
from fedfew.stack import Tree, leaves, named_leaves, stack, tree_map


class _Descent:
    """``torch.optim.SGD`` by the function that it calls itself: the class loads PyTorch's compiler, which takes a second that a
    site on a network would spend on every message."""

    def __init__(self, parameters: list[Tensor], training: LocalTraining) -> None:
        self._parameters = parameters
        self._velocities: list[Tensor | None] = [None] * len(parameters)
        self._training = training

    def forget(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        moved = [(i, parameter, parameter.grad) for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        parameters, velocities = [parameter for _, parameter, _ in moved], [self._velocities[i] for i, _, _ in moved]
        sgd(
            parameters,
            [gradient for _, _, gradient in moved],
            velocities,
            foreach=bool(parameters) and parameters[0].is_cuda,  # as the class does
            weight_decay=self._training.weight_decay,
            momentum=self._training.momentum,
            lr=self._training.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for (i, _, _), velocity in zip(moved, velocities, strict=True):
            self._velocities[i] = velocity


class Sequential(Engine):
    name: ClassVar[str] = "sequential"

    def _train(
        self,
        params: Tree,
        samples: Samples,
        passes: Iterator[Pass],
        objective: Objective,
        context: Tree,
        project: Projection | None,
    ) -> tuple[Tree, Tensor]:
        epochs = list(passes)
        trained = tree_map(lambda t: torch.empty(t.shape, dtype=t.dtype, device=t.device), params)

        def train(at: Sequential, i: int, k: int) -> tuple[Tree, Tensor]:
            """In place: of large models, copies would take as long as some steps."""
            for into, start in zip(leaves(trained), leaves(params), strict=True):
                into[i, k] = start[i, k]
            loss = at._train_replica(
                tree_map(lambda t: t[i, k].data, trained),  # .data: what is done to one replica is not held against another
                samples,
                i,
                [e.take((i, k)) for e in epochs],
                objective,
                tree_map(lambda t: t[i, k].clone(), context),  # a module in training writes into its buffers
                project,
            )
            return {}, loss

        _, losses = self._for_each_replica(train, params, samples)
        return trained, losses

    def _laid_out(self, x: Tensor) -> Tensor:
        """Inputs as the arithmetic likes them in memory."""
        return x

    def _for_each_replica(self, work: Work, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        """work(engine, i, k) for every client i and model k, its results stacked again: [C, K, …]."""
        clients, models = leaves(params)[0].shape[:2]
        return together([[work(self, i, k) for k in range(models)] for i in range(clients)])

    def _train_replica(
        self,
        params: Tree,
        samples: Samples,
        i: int,
        epochs: list[Pass],
        objective: Objective,
        context: Tree,
        project: Projection | None,
    ) -> Tensor:
        """Train one replica in place; the mean loss reported over the last epoch."""
        context, prior = without_prior(context)
        trained = [t.requires_grad_() for path, t in named_leaves(params) if self.trainable(path)]
        settings = self.training
        descent = _Descent(trained, settings)
        rows = samples.rows(i)
        mean_loss = torch.zeros((), device=rows.device)
        for epoch in epochs:
            mean_loss = torch.zeros((), device=rows.device)
            for step, batch in enumerate(rows[epoch.order[: len(rows)]].split(settings.batch_size)):
                inputs, labels = samples.inputs(batch), samples.y[batch]
                if epoch.augment is not None:
                    first = step * settings.batch_size
                    inputs = augmented(inputs, settings.augment, epoch.augment, first, black(samples))
                inputs = self._laid_out(inputs)

                def loss(
                    weights: Tree, through: Through | None = None, inputs: Tensor = inputs, labels: Tensor = labels
                ) -> Tensor:
                    return F.cross_entropy(shifted(forward(self.module, weights, inputs, through), prior), labels)

                descent.forget()
                if epoch.dropout is None:
                    minimised, reported = objective(loss, params, context)
                else:
                    with keyed(random_streams.count(epoch.dropout, step)):
                        minimised, reported = objective(loss, params, context)
                minimised.backward()
                descent.step()
                if project is not None:
                    with torch.no_grad():
                        project(params)
                mean_loss = mean_loss + reported.detach() * (len(batch) / len(rows))
        return mean_loss

    def _gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        def differentiate(at: Sequential, i: int, k: int) -> tuple[Tree, Tensor]:
            weights = tree_map(lambda t: t[i, k].clone(), params)
            for path, weight in named_leaves(weights):
                weight.requires_grad_(self.trainable(path))
            rows = samples.rows(i)
            prior = None if samples.log_prior is None else samples.log_prior[i]
            mean_loss = torch.zeros((), device=rows.device)
            for batch in evaluation_batches(rows):
                logits = shifted(forward(at.module, weights, at._laid_out(samples.inputs(batch))), prior)
                part = F.cross_entropy(logits, samples.y[batch], reduction="sum") / len(rows)
                part.backward()
                mean_loss = mean_loss + part.detach()
            return tree_map(lambda t: torch.zeros_like(t) if t.grad is None else t.grad, weights), mean_loss

        return self._for_each_replica(differentiate, params, samples)

    def _score(self, params: Tree, samples: Samples) -> ModelScores:
        def score(at: Sequential, i: int, s: int) -> tuple[Tree, Tensor]:
            weights = tree_map(lambda t: t[i, s], params)
            rows = samples.rows(i)
            prior = None if samples.log_prior is None else samples.log_prior[i]
            total = torch.zeros(2, dtype=torch.float64, device=rows.device)
            for batch in evaluation_batches(rows):
                logits = shifted(forward(at.module, weights, at._laid_out(samples.inputs(batch))), prior)
                labels = samples.y[batch]
                total[0] += F.cross_entropy(logits, labels, reduction="sum")
                total[1] += correct(logits, labels).sum()
            return {}, (total / len(rows)).float()

        _, scores = self._for_each_replica(score, params, samples)
        return ModelScores(loss=scores[..., 0], accuracy=scores[..., 1])


Work = Callable[[Sequential, int, int], tuple[Tree, Tensor]]
"""work(engine, i, k): something done, in that engine, to client i's replica of model k."""


def together(rows: list[list[tuple[Tree, Tensor]]]) -> tuple[Tree, Tensor]:
    """What was done to every client's replicas, stacked: [C, K, …]."""
    trees = stack([stack([tree for tree, _ in row]) for row in rows])
    return trees, torch.stack([torch.stack([value for _, value in row]) for row in rows])
