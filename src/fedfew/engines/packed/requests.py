"""What the runs of a pack ask for, and how several such requests are fulfilled at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfew.engines.base import Keys
from fedfew.engines.evaluation import ModelScores
from fedfew.engines.packed.members import AFTER, BEFORE, TRAINING
from fedfew.engines.packed.stack import SharedStack
from fedfew.federation import Samples
from fedfew.local import LocalEpochs
from fedfew.stack import Tree, leaves, named_leaves, tree_map


def shapes(tree: Tree) -> Hashable:
    """Of one replica."""
    return tuple((path, t.shape[2:], t.dtype) for path, t in named_leaves(tree))


def one_model_each(tree: Tree) -> Tree:
    """``[C, K, …]`` as ``[C·K, 1, …]``: so runs of different K can be trained in one stack."""
    return tree_map(lambda t: t.flatten(0, 1).unsqueeze(1), tree)


def joined(trees: Sequence[Tree]) -> Tree:
    return trees[0] if len(trees) == 1 else tree_map(lambda *of: torch.cat(of), *trees)


def size_of(tree: Tree) -> tuple[int, int]:
    clients, models = leaves(tree)[0].shape[:2]
    return clients, models


def taken_apart(tree: Tree, losses: Tensor, sizes: Sequence[tuple[int, int]]) -> list[tuple[Tree, Tensor]]:
    """A tree ``[Σ C·K, 1, …]`` and losses ``[Σ C·K, 1]`` as those of each run, ``[C, K, …]``."""
    parts = []
    begin = 0
    for clients, models in sizes:
        own = slice(begin, begin + clients * models)

        def of_run(t: Tensor, own: slice = own, models: int = models) -> Tensor:
            return t[own].squeeze(1).unflatten(0, (-1, models))

        parts.append((tree_map(of_run, tree), of_run(losses)))
        begin = own.stop
    return parts


@dataclass(frozen=True, eq=False)
class Training:
    """Local epochs of replicas ``[C, K, …]``."""

    stack: SharedStack
    epochs: LocalEpochs
    lr: float
    keys: Sequence[Keys]  # one per epoch
    stage: int = TRAINING

    @cached_property
    def size(self) -> tuple[int, int]:
        return size_of(self.epochs.params)

    @cached_property
    def kind(self) -> Hashable:
        of = self.epochs
        weighted = None if of.weights is None else of.weights.dtype
        replicas = shapes(of.params), shapes(of.context)
        data = self.stack.data(of.samples)
        return "training", self.stack, data, of.objective, of.project, weighted, self.lr, len(self.keys), *replicas

    def work(self) -> int:
        return self.size[1] * self.epochs.samples.longest * len(self.epochs.samples.count)

    def together(self, requests: Sequence[Training]) -> list[tuple[Tree, Tensor]]:
        most = self.stack.replicas_that_fit(self.epochs.samples)
        return [found for part in parts_of(requests, most, lambda r: r.size[0] * r.size[1]) for found in _trained(part)]


def _trained(requests: Sequence[Training]) -> list[tuple[Tree, Tensor]]:
    first, sizes = requests[0], [r.size for r in requests]
    work, engine = first.epochs, first.stack.engine
    if len(requests) > 1:
        every = [r.epochs for r in requests]
        samples = first.stack.joined([(r.epochs.samples, r.size[1]) for r in requests])
        given = [epochs.weights.flatten(0, 1).unsqueeze(1) for epochs in every if epochs.weights is not None]
        work = replace(
            work,
            samples=samples,
            params=joined([one_model_each(epochs.params) for epochs in every]),
            context=joined([one_model_each(epochs.context) for epochs in every]),
            weights=torch.cat([F.pad(w, (0, samples.longest - w.shape[-1])) for w in given]) if given else None,
        )

    def keys(epoch: int) -> Keys:
        if len(requests) == 1:
            return first.keys[epoch]
        return lambda stream: torch.cat([r.keys[epoch](stream).flatten() for r in requests])[:, None]

    passes = (engine.pass_of(work.samples, first.lr, keys(epoch), work.weights) for epoch in range(len(first.keys)))
    trained, losses = engine.train_passes(work, passes)
    return [(trained, losses)] if len(requests) == 1 else taken_apart(trained, losses, sizes)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of replicas ``[C, K, …]``."""

    stack: SharedStack
    params: Tree
    samples: Samples
    stage: int = BEFORE

    @cached_property
    def size(self) -> tuple[int, int]:
        return size_of(self.params)

    @cached_property
    def kind(self) -> Hashable:
        return "gradients", self.stack, self.stack.data(self.samples), shapes(self.params)

    def work(self) -> int:
        return self.size[1] * self.samples.longest * len(self.samples.count)

    def together(self, requests: Sequence[Gradients]) -> list[tuple[Tree, Tensor]]:
        engine, sizes = self.stack.engine, [r.size for r in requests]
        if len(requests) == 1:
            return [engine.gradient(self.params, self.samples)]
        samples = self.stack.joined([(r.samples, r.size[1]) for r in requests])
        gradient, losses = engine.gradient(joined([one_model_each(r.params) for r in requests]), samples)
        return taken_apart(gradient, losses, sizes)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of candidates ``[1 or C, S, …]`` on some splits; or, with weights ``[C, S]``, of their mixture and each on one."""

    stack: SharedStack
    params: Tree
    splits: tuple[Samples, ...]
    stage: int = AFTER
    weights: Tensor | None = None

    @cached_property
    def kind(self) -> Hashable:
        rows, models = leaves(self.params)[0].shape[:2]
        clients = len(self.splits[0].count) if rows == 1 else None  # of models that clients share: as many of each run
        data = tuple(self.stack.data(s) for s in self.splits)
        return "scores", self.stack, data, clients, models, self.weights is not None, shapes(self.params)

    def work(self) -> int:
        return leaves(self.params)[0].shape[1] * sum(s.longest * len(s.count) for s in self.splits)

    def together(self, requests: Sequence[Scores]) -> list[list[ModelScores]]:
        clients = len(self.splits[0].count)
        in_one_pass = self.stack.engine.clients_at_once(self.params, self.splits)
        if in_one_pass < clients and leaves(self.params)[0].shape[0] > 1:
            return _scored(requests)  # the engine takes as many clients at a time as fit
        return [found for part in parts_of(requests, in_one_pass, lambda r: len(r.splits[0].count)) for found in _scored(part)]

    def scored(self, params: Tree, splits: Sequence[Samples], weights: Tensor | None) -> list[ModelScores]:
        if weights is None:
            return self.stack.engine.scores(params, splits)
        return list(self.stack.engine.score_mixture(params, splits[0], weights))


def _scored(requests: Sequence[Scores]) -> list[list[ModelScores]]:
    first = requests[0]
    if len(requests) == 1:
        return [first.scored(first.params, first.splits, first.weights)]
    splits = [first.stack.joined([(s, 1) for s in of]) for of in zip(*(r.splits for r in requests), strict=True)]
    weights = [r.weights for r in requests if r.weights is not None]
    found = first.scored(joined([r.params for r in requests]), splits, torch.cat(weights) if weights else None)
    clients = [len(r.splits[0].count) for r in requests]
    of_splits = [zip(s.loss.split(clients), s.score.split(clients), strict=True) for s in found]
    return [[ModelScores(*of) for of in of_run] for of_run in zip(*of_splits, strict=True)]


def parts_of(requests: Sequence[Any], most: int, size: Callable[[Any], int]) -> list[list[Any]]:
    """The requests in order, as many at a time as are not larger than ``most`` together; at least one."""
    parts: list[list[Any]] = []
    for request in requests:
        if parts and sum(map(size, parts[-1])) + size(request) <= most:
            parts[-1].append(request)
        else:
            parts.append([request])
    return parts
