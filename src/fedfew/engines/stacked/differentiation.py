"""Gradients of all replicas at once, and the steps along them, each recorded where its shapes come again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap

from fedfew.engines.dropout import keyed
from fedfew.engines.evaluation import forward
from fedfew.engines.loss import BatchLoss, client_terms, shifted, stacked_loss
from fedfew.engines.stacked import optimizer
from fedfew.engines.stacked.batch_norm import weighted_rows
from fedfew.engines.stacked.descent import descending
from fedfew.engines.stacked.functions import SameUnderVmap
from fedfew.engines.stacked.kernels import cross_entropy, usable
from fedfew.engines.stacked.traced import Traced
from fedfew.local import Objective, Projection, Through
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map

if TYPE_CHECKING:
    from fedfew.engines.stacked.engine import Stacked

Gradients = Callable[..., tuple[list[Tensor | None], Tensor]]


@dataclass(frozen=True)
class Front:
    """The first replicas of the sorted stack, those whose clients are still in their epoch, and how they are differentiated."""

    replicas: int
    weights: Tree  # [replicas, …]
    trained: list[tuple[str, Tensor]]  # of the weights
    moved: list[int]  # where they are among the arguments of:
    gradients: Gradients
    rest: list[Tensor]  # its arguments after x, y and the samples' weights
    name: Hashable  # of the function: what else it depends on


class Differentiation:
    """What :class:`Stacked` does for the gradients of a stack and for a step of its optimiser."""

    def __init__(self, engine: Stacked) -> None:
        self.engine = engine
        self._gradients_of, self._descent_of = Traced(), Traced()

    @property
    def operations(self) -> int:
        """How many operations the longest step recorded so far has."""
        return max(self._gradients_of.operations, self._descent_of.operations)

    def front(
        self,
        weights: Tree,
        context: Tree,
        replicas: int,
        objective: Objective,
        keyed: bool,
        weighted: bool = False,
        training: bool = False,
    ) -> Front:
        """weighted: samples' losses are multiplied by their importance; training: with label smoothing, and scaled by a learning
        rate that is not the same in every round."""
        active, fixed = (tree_map(lambda t: t[:replicas], tree) for tree in (weights, context))
        scaled = training and self.engine.training.scheduled and optimizer.is_plain(self.engine.training)
        smoothing = self.engine.training.label_smoothing if training else 0.0
        gradients, rest = self.gradients(objective, active, fixed, keyed, scaled, smoothing, weighted)
        moved = [3 + at for at, (path, _) in enumerate(named_leaves(active)) if self.engine.trainable(path)]
        names = [tuple(path for path, _ in named_leaves(tree)) for tree in (weights, context)]  # which is which matters
        name = (objective, training, weighted, self.engine.module.training, *names)
        return Front(replicas, active, self.engine.trained(active), moved, gradients, rest, name)

    def step(
        self,
        front: Front,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        importance: Tensor | None,
        key: Tensor | None,
        lr: float | Tensor,
        state: optimizer.State,
        project: Projection | None,
    ) -> Tensor:
        """Move the front's weights by one step of the optimiser; the losses reported.

        lr: a tensor where it changes from round to round, so that no step is recorded or captured anew for it. Then plain SGD
        scales what is minimised by it: gradients can still go straight into the weights.
        """
        tensors = (x, y, weight, *front.rest, *_some(key), *_some(importance))
        if optimizer.is_plain(self.engine.training):
            constant, scale = (1.0, (lr,)) if isinstance(lr, Tensor) else (lr, ())
            descent = partial(descending, parameters=front.moved, lr=constant, kernels=usable(x.device))
            reported = self._descent_of(front.name, front.gradients, *tensors, *scale, rewrite=descent)
        else:
            gradients, reported = self._gradients_of(front.name, front.gradients, *tensors)
            moved = [(path, t, g) for (path, t), g in zip(front.trained, gradients, strict=True) if g is not None]
            if moved:
                paths, parameters, steps = map(list, zip(*moved, strict=True))
                optimizer.step(self.engine.training, lr, paths, parameters, steps, state)
        if project is not None:
            project(front.weights)
        return reported

    def differentiate(
        self, objective: Objective, weights: Tree, x: Tensor, y: Tensor, weight: Tensor, context: Tree, key: Tensor | None
    ) -> tuple[list[Tensor | None], Tensor]:
        """Gradients of every replica's objective with respect to what is trained of it, and the losses reported."""
        front = self.front(weights, context, len(x), objective, key is not None)
        found: tuple[list[Tensor | None], Tensor] = self._gradients_of(
            front.name, front.gradients, x, y, weight, *front.rest, *_some(key)
        )
        return found

    def gradients(
        self,
        objective: Objective,
        weights: Tree,
        context: Tree,
        keyed: bool,
        scaled: bool = False,
        smoothing: float = 0.0,
        weighted: bool = False,
    ) -> tuple[Gradients, list[Tensor]]:
        """The same as a function of nothing but tensors: x, y, the samples' weights, the leaves of weights and context, which are
        returned beside it, a key for dropout, the samples' importance, and what the gradients are scaled by."""
        names, fixed_names = ([path for path, _ in named_leaves(tree)] for tree in (weights, context))

        def gradients(x: Tensor, y: Tensor, weight: Tensor, *rest: Tensor) -> tuple[list[Tensor | None], Tensor]:
            scale, rest = (rest[-1], rest[:-1]) if scaled else (None, rest)
            named = {path: t.detach() for path, t in zip(names, rest, strict=False)}
            fixed = from_named(dict(zip(fixed_names, rest[len(names) :], strict=False)))
            trained = [t.requires_grad_() for path, t in named.items() if self.engine.trainable(path)]
            importance, rest = (rest[-1], rest[:-1]) if weighted else (None, rest)
            key = rest[-1] if keyed else None
            minimised, reported = self._map(objective, from_named(named), x, y, weight, importance, fixed, key, smoothing)
            if scale is not None:
                minimised = minimised * scale.to(minimised.dtype).expand_as(minimised)
            # not with grad_outputs, for which PyTorch would import its compiler
            return list(torch.autograd.grad(minimised.sum(), trained, allow_unused=True)), reported.detach()

        return gradients, [*leaves(weights), *leaves(context)]

    def _map(
        self,
        objective: Objective,
        weights: Tree,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        importance: Tensor | None,
        context: Tree,
        key: Tensor | None,
        smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        """The objective of every replica at once."""

        def replica(
            params: Tree, x: Tensor, y: Tensor, weight: Tensor, importance: Tensor | None, fixed: Tree, key: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            own, terms = client_terms(fixed)

            def outputs(candidate: Tree, through: Through | None) -> Tensor:
                with SameUnderVmap():
                    return forward(self.engine.module, candidate, x, through)

            def of(outputs: Tensor, log_prior: Tensor | None) -> Tensor:
                given = (y, weight, terms.class_weights, smoothing, importance)
                if self.engine.criterion.is_cross_entropy and cross_entropy.takes(outputs):
                    return cross_entropy.cross_entropy(outputs, *given, log_prior)
                return stacked_loss(self.engine.criterion, shifted(outputs, log_prior), *given)

            of_rows = weight if weight.ndim == 1 else weight.sum(-1)
            with weighted_rows(of_rows), nullcontext() if key is None else keyed(key):
                return objective(BatchLoss(outputs, of, y, weight, terms.log_prior), params, own)

        optional = (None if importance is None else 0, 0 if context else None, None if key is None else 0)
        with self.engine.or_unsupported():
            of_all = vmap(replica, in_dims=(0, 0, 0, 0, *optional), randomness="different")
            return of_all(weights, x, y, weight, importance, context, key)


def _some(tensor: Tensor | None) -> tuple[Tensor, ...]:
    return () if tensor is None else (tensor,)
