"""One replica at a time, plain PyTorch: the reference in tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedfew import random_streams
from fedfew.config import LocalTraining
from fedfew.engines.augment import black, moved, moves
from fedfew.engines.base import BETAS, EPS, Engine, Pass
from fedfew.engines.dropout import keyed
from fedfew.engines.evaluation import ModelScores, forward, totals
from fedfew.engines.loss import BatchLoss, ClientTerms, client_terms, shifted
from fedfew.federation import Samples
from fedfew.local import LocalEpochs, Loss, Objective, Projection, Through
from fedfew.stack import Tree, leaves, named_leaves, stack, tree_map


@dataclass(frozen=True)
class Drawn:
    """What is drawn for one step of one replica."""

    share: Tensor | None = None  # λ of mixup
    importance: Tensor | None = None  # what each sample's loss is multiplied by
    key: Tensor | None = None  # of dropout


Step = Callable[[Tensor, Tensor, Drawn, float], Tensor]
"""step(inputs, labels, drawn, lr) → the loss reported; moves the replica in place."""


class Descent:
    """``torch.optim.SGD``, ``Adam`` or ``AdamW`` by the function that it calls itself: the class loads PyTorch's compiler, which
    takes a second that a site on a network would spend on every message."""

    def __init__(self, parameters: list[Tensor], training: LocalTraining) -> None:
        self._parameters = parameters
        self._states: list[list[Tensor] | None] = [None] * len(parameters)
        self._training = training

    def forget(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move the parameters by their gradients, ``.grad``."""
        moved = [(i, parameter, parameter.grad) for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        if not moved:
            return
        parameters, gradients = [parameter for _, parameter, _ in moved], [gradient for _, _, gradient in moved]
        if self._training.clip_gradient:
            gradients = _clipped(gradients, self._training.clip_gradient)
        states = [self._states[i] for i, _, _ in moved]
        foreach = parameters[0].is_cuda  # as the classes do
        after = (self._sgd if self._training.optimizer == "sgd" else self._adam)(lr, parameters, gradients, states, foreach)
        for (i, _, _), state in zip(moved, after, strict=True):
            self._states[i] = state

    def _sgd(
        self, lr: float, parameters: list[Tensor], gradients: list[Tensor], states: list[list[Tensor] | None], foreach: bool
    ) -> list[list[Tensor] | None]:
        velocities = [None if state is None else state[0] for state in states]
        sgd(
            parameters,
            gradients,
            velocities,
            foreach=foreach,
            weight_decay=self._training.weight_decay,
            momentum=self._training.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        return [None if velocity is None else [velocity] for velocity in velocities]

    def _adam(
        self, lr: float, parameters: list[Tensor], gradients: list[Tensor], states: list[list[Tensor] | None], foreach: bool
    ) -> list[list[Tensor] | None]:
        begun = [
            [torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())] if state is None else state
            for p, state in zip(parameters, states, strict=True)
        ]
        first, second, steps = ([state[of] for state in begun] for of in range(3))
        adam(
            parameters,
            gradients,
            first,
            second,
            [],
            steps,
            foreach=foreach,
            decoupled_weight_decay=self._training.optimizer == "adamw",
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=lr,
            weight_decay=self._training.weight_decay,
            eps=EPS,
            maximize=False,
        )
        return list(begun)


def _clipped(gradients: list[Tensor], most: float) -> list[Tensor]:
    """What ``clip_grad_norm_`` makes of them, which writes into them: two may be views of one tensor, as those of parameters that
    are added to a batch of one sample."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return list(torch._foreach_mul(gradients, (most / (norm + 1e-6)).clamp_max(1.0)))


class Sequential(Engine):
    name: ClassVar[str] = "sequential"

    def _train(self, work: LocalEpochs, passes: Iterator[Pass]) -> tuple[Tree, Tensor]:
        epochs = list(passes)
        trained = tree_map(lambda t: torch.empty(t.shape, dtype=t.dtype, device=t.device), work.params)

        def train(at: Sequential, i: int, k: int) -> tuple[Tree, Tensor]:
            """In place: of large models, copies would take as long as some steps."""
            for into, start in zip(leaves(trained), leaves(work.params), strict=True):
                into[i, k] = start[i, k]
            loss = at._train_replica(
                tree_map(lambda t: t[i, k].data, trained),  # .data: steps of one replica must not count as changes of another
                work.samples,
                i,
                [e.take((i, k)) for e in epochs],
                work.objective,
                tree_map(lambda t: t[i, k].clone(), work.context),  # a module in training writes into its buffers
                work.project,
            )
            return {}, loss

        _, losses = self._for_each_replica(train, work.params, work.samples)
        return trained, losses

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
        step_of = self._steps(params, objective, context, project)
        settings = self.training
        rows = samples.rows(i)
        mean_loss = torch.zeros((), device=rows.device)
        for epoch in epochs:
            mean_loss = torch.zeros((), device=rows.device)
            shifts = None
            if epoch.augment is not None:  # of all steps at once: a hash of few numbers takes as long as one of many
                shifts = moves(settings.augment, epoch.augment, torch.arange(len(rows), device=rows.device))
            for step, batch in enumerate(rows[epoch.order[: len(rows)]].split(settings.batch_size)):
                window = slice(step * settings.batch_size, step * settings.batch_size + len(batch))
                inputs, labels = samples.inputs(batch), samples.y[batch]
                if shifts is not None:
                    inputs = moved(inputs, shifts[window], black(samples))
                inputs = self._laid_out(inputs)
                drawn = Drawn(
                    None if epoch.mixup is None else epoch.mixup[step],
                    None if epoch.importance is None else epoch.importance[window],
                    None if epoch.dropout is None else random_streams.count(epoch.dropout, step),
                )
                reported = step_of(inputs, labels, drawn, epoch.lr)
                mean_loss = mean_loss + reported * (len(batch) / len(rows))
        return mean_loss

    def _steps(self, params: Tree, objective: Objective, context: Tree, project: Projection | None) -> Step:
        """Steps of training one replica in place."""
        trained = [t.requires_grad_() for path, t in named_leaves(params) if self.trainable(path)]
        descent = Descent(trained, self.training)

        def step(inputs: Tensor, labels: Tensor, drawn: Drawn, lr: float) -> Tensor:
            descent.forget()
            minimised, reported = self.minimised(params, objective, context, inputs, labels, drawn)
            minimised.backward()
            descent.step(lr)
            if project is not None:
                with torch.no_grad():
                    project(params)
            return reported.detach()

        return step

    def minimised(
        self, params: Tree, objective: Objective, context: Tree, inputs: Tensor, labels: Tensor, drawn: Drawn
    ) -> tuple[Tensor, Tensor]:
        """What the objective makes of a batch: what is minimised, and the loss reported."""
        own, terms = client_terms(context)
        loss = self._loss(terms, inputs, labels, drawn.share, drawn.importance)
        with nullcontext() if drawn.key is None else keyed(drawn.key):
            return objective(loss, params, own)

    def _loss(
        self, terms: ClientTerms, inputs: Tensor, labels: Tensor, share: Tensor | None, importance: Tensor | None = None
    ) -> Loss:
        """The training loss on a batch; share: λ of mixup; importance: what each sample's loss is multiplied by."""
        if share is not None:
            inputs = share * inputs + (1 - share) * inputs.roll(-1, 0)

        def outputs(weights: Tree, through: Through | None) -> Tensor:
            return forward(self.module, weights, inputs, through)

        def loss(outputs: Tensor, log_prior: Tensor | None) -> Tensor:
            of = self._mean_loss(shifted(outputs, log_prior), terms)
            if share is None:
                return of(labels, importance)
            rolled, own = None if importance is None else importance.roll(-1), share.to(outputs.dtype)
            return own * of(labels, importance) + (1 - own) * of(labels.roll(-1, 0), rolled)

        each = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64, device=labels.device)
        if share is None:
            return BatchLoss(outputs, loss, labels, each, terms.log_prior)
        both = torch.stack([labels, labels.roll(-1, 0)], 1)
        exact = share.to(each.dtype)
        return BatchLoss(outputs, loss, both, each[:, None] * torch.stack([exact, 1 - exact]), terms.log_prior)

    def _mean_loss(self, outputs: Tensor, terms: ClientTerms) -> Callable[[Tensor, Tensor | None], Tensor]:
        """The mean loss of these outputs as a function of the targets and of what each sample's loss is multiplied by."""
        if self.criterion.is_cross_entropy:
            weight = None if terms.class_weights is None else terms.class_weights.to(outputs.dtype)
            return partial(_cross_entropy, outputs, weight=weight, smoothing=self.training.label_smoothing)

        def mean(y: Tensor, importance: Tensor | None) -> Tensor:
            losses = self.criterion.losses(outputs, y)
            return losses.mean() if importance is None else (losses * importance).mean()

        return mean

    def _gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        def differentiate(at: Sequential, i: int, k: int) -> tuple[Tree, Tensor]:
            weights = tree_map(lambda t: t[i, k].clone(), params)
            for path, weight in named_leaves(weights):
                weight.requires_grad_(self.trainable(path))
            rows = samples.rows(i)
            mean_loss = torch.zeros((), device=rows.device)
            for batch in self._evaluation.batches(rows, samples):
                part = self.criterion.total(at._logits(weights, samples, i, batch), samples.y[batch]) / len(rows)
                part.backward()
                mean_loss = mean_loss + part.detach()
            return tree_map(lambda t: torch.zeros_like(t) if t.grad is None else t.grad, weights), mean_loss

        return self._for_each_replica(differentiate, params, samples)

    def _logits(self, weights: Tree, samples: Samples, i: int, rows: Tensor) -> Tensor:
        """Of these samples of client i, with its prior."""
        prior = None if samples.log_prior is None else samples.log_prior[i]
        return shifted(forward(self.module, weights, self._laid_out(samples.inputs(rows))), prior)

    def _score(self, params: Tree, samples: Samples) -> ModelScores:
        def score(at: Sequential, i: int, s: int) -> tuple[Tree, Tensor]:
            weights = tree_map(lambda t: t[i, s], params)
            rows = samples.rows(i)
            total = totals(self.criterion, samples.y, 1, 1)[:, 0, 0]
            for batch in self._evaluation.batches(rows, samples):
                logits, labels = at._logits(weights, samples, i, batch), samples.y[batch]
                total[0] += self.criterion.total(logits, labels)
                for at_term, statistic in enumerate(self.criterion.task.statistics(logits, labels), start=1):
                    total[at_term] += statistic.sum()
            return {}, torch.stack(self.criterion.scores(total / len(rows)))

        _, scores = self._for_each_replica(score, params, samples)
        return ModelScores(loss=scores[..., 0], score=scores[..., 1])


def _cross_entropy(logits: Tensor, y: Tensor, importance: Tensor | None, weight: Tensor | None, smoothing: float) -> Tensor:
    """The mean; importance: what each sample's loss is multiplied by before."""
    if importance is None:
        return F.cross_entropy(logits, y, weight, label_smoothing=smoothing)
    each = F.cross_entropy(logits, y, weight, label_smoothing=smoothing, reduction="none")
    return (each * importance).sum() / (len(y) if weight is None else weight[y].sum())


Work = Callable[[Sequential, int, int], tuple[Tree, Tensor]]
"""work(engine, i, k): something done, in that engine, to client i's replica of model k."""


def together(rows: list[list[tuple[Tree, Tensor]]]) -> tuple[Tree, Tensor]:
    """What was done to every client's replicas, stacked: [C, K, …]."""
    trees = stack([stack([tree for tree, _ in row]) for row in rows])
    return trees, torch.stack([torch.stack([value for _, value in row]) for row in rows])
