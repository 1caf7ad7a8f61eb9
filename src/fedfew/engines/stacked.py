"""All replicas at once: one batched computation a step for every client and model, through ``torch.func.vmap``.

Clients are sorted by size, so those that have finished their epoch leave the stack and nobody trains on padding; only the last,
partial batch of a client is filled up, with samples that weigh nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedfew import counted
from fedfew.engines.base import (
    EVALUATION_BATCH,
    Engine,
    LocalTraining,
    Objective,
    Pass,
    Scores,
    UnsupportedModuleError,
    cross_entropy,
)
from fedfew.engines.dropout import keyed
from fedfew.federation import Samples, as_input
from fedfew.stack import Tree, from_named, leaves, named_leaves, tree_map


@dataclass(frozen=True)
class Batch:
    """A step for the first ``clients`` of the sorted stack: tensors are ``[clients, K, B, …]``."""

    clients: int
    x: Tensor
    y: Tensor
    weight: Tensor  # 1/b for each of a replica's b samples, 0 for what fills the batch up
    share: Tensor  # [clients]: b / n_i


class Stacked(Engine):
    name: ClassVar[str] = "stacked"

    def __init__(self, module: nn.Module, training: LocalTraining, seed: int) -> None:
        super().__init__(module, training, seed)
        norms = [n for n, m in self.module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if norms:
            raise UnsupportedModuleError(
                f"the stacked engine cannot take BatchNorm ({norms[0]}), whose statistics would mix the padding of partial "
                "batches in; use GroupNorm or LayerNorm, or engine='sequential'"
            )

    def _train(
        self, params: Tree, samples: Samples, passes: Iterator[Pass], objective: Objective, context: Tree
    ) -> tuple[Tree, Tensor]:
        clients, models = leaves(params)[0].shape[:2]
        rank, sizes = _by_size(samples)
        weights = tree_map(lambda t: t[rank].flatten(0, 1), params)
        fixed = tree_map(lambda t: t[rank].flatten(0, 1), context)
        velocity: dict[str, Tensor] = {}
        mean_loss = torch.zeros(())
        for one_pass in passes:
            key = None if one_pass.key is None else one_pass.key[rank].flatten()
            mean_loss = torch.zeros(())
            batches = _batches(samples, rank, sizes, one_pass.order[rank], self.training.batch_size)
            for step, batch in enumerate(batches):
                replicas = batch.clients * models
                reported = self._step(
                    tree_map(lambda t, r=replicas: t[:r], weights),
                    batch,
                    objective,
                    tree_map(lambda t, r=replicas: t[:r], fixed),
                    None if key is None else counted.count(key[:replicas], step),
                    velocity,
                )
                if step == 0:
                    mean_loss = torch.zeros(clients, *reported.shape[1:], device=reported.device)
                mean_loss[: batch.clients] += reported * batch.share.reshape(-1, *[1] * (reported.ndim - 1))
        trained = tree_map(lambda t: _unranked(t.unflatten(0, (clients, models)), rank), weights)
        return trained, _unranked(mean_loss, rank)

    def _step(
        self,
        weights: Tree,
        batch: Batch,
        objective: Objective,
        context: Tree,
        key: Tensor | None,
        velocity: dict[str, Tensor],
    ) -> Tensor:
        """One SGD step of the replicas [R, …], in place; the losses reported, [clients, K, …]."""
        named = {path: t.detach() for path, t in named_leaves(weights)}
        trained = {path: t.requires_grad_() for path, t in named.items() if self.trainable(path)}
        x, y, weight = (t.flatten(0, 1) for t in (batch.x, batch.y, batch.weight))
        minimised, reported = self._map(objective, from_named(named), x, y, weight, context, key)
        gradients = torch.autograd.grad(minimised.sum(), list(trained.values()), allow_unused=True)
        with torch.no_grad():
            for (path, parameter), gradient in zip(trained.items(), gradients, strict=True):
                if gradient is not None:
                    self._descend(path, parameter, gradient, velocity)
        return reported.detach().unflatten(0, (batch.clients, -1))

    def _map(
        self,
        objective: Objective,
        weights: Tree,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        context: Tree,
        key: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The objective of every replica at once."""

        def replica(params: Tree, x: Tensor, y: Tensor, weight: Tensor, fixed: Tree, key: Tensor | None) -> tuple[Tensor, Tensor]:
            def loss(candidate: Tree) -> Tensor:
                logits = functional_call(self.module, candidate, (x,))
                return (F.cross_entropy(logits, y, reduction="none") * weight).sum()

            if key is None:
                return objective(loss, params, fixed)
            with keyed(key):
                return objective(loss, params, fixed)

        in_dims = (0, 0, 0, 0, 0 if context else None, None if key is None else 0)
        try:
            mapped = vmap(replica, in_dims=in_dims, randomness="different")
            return mapped(weights, x, y, weight, context, key)  # type: ignore[no-any-return]  # vmap is untyped
        except RuntimeError as error:
            raise UnsupportedModuleError(
                f"the stacked engine cannot take {type(self.module).__name__}: torch.func.vmap says "
                f"«{str(error).splitlines()[0]}»; use engine='sequential'"
            ) from error

    def _descend(self, path: str, parameter: Tensor, gradient: Tensor, velocity: dict[str, Tensor]) -> None:
        if self.training.weight_decay:
            gradient = gradient + self.training.weight_decay * parameter
        if self.training.momentum:
            if path not in velocity:  # every replica takes the first step, so this is the whole stack
                velocity[path] = torch.zeros_like(parameter)
            gradient = velocity[path][: len(parameter)].mul_(self.training.momentum).add_(gradient)
        parameter.data.add_(gradient, alpha=-self.training.lr)

    def gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        self.module.eval()
        clients, models = leaves(params)[0].shape[:2]
        rank, sizes = _by_size(samples)
        weights = tree_map(lambda t: t[rank].flatten(0, 1), params)
        total = tree_map(torch.zeros_like, weights)
        mean_loss = torch.zeros(clients, models, device=rank.device)
        for batch in _batches(samples, rank, sizes, _in_order(samples, models), EVALUATION_BATCH):
            replicas = batch.clients * models
            named = {path: t[:replicas].detach() for path, t in named_leaves(weights)}
            trained = [t.requires_grad_() for path, t in named.items() if self.trainable(path)]
            share = batch.share[:, None, None]
            x, y, weight = (t.flatten(0, 1) for t in (batch.x, batch.y, batch.weight * share))
            value, _ = self._map(cross_entropy, from_named(named), x, y, weight, {}, None)
            sums = [t[:replicas] for path, t in named_leaves(total) if self.trainable(path)]
            for into, part in zip(sums, torch.autograd.grad(value.sum(), trained), strict=True):
                into += part
            mean_loss[: batch.clients] += value.detach().unflatten(0, (batch.clients, models))
        return tree_map(lambda t: _unranked(t.unflatten(0, (clients, models)), rank), total), _unranked(mean_loss, rank)

    def _score(self, params: Tree, samples: Samples) -> Scores:
        clients, models = leaves(params)[0].shape[:2]
        rank, sizes = _by_size(samples)
        ranked = tree_map(lambda t: t[rank], params)
        total = torch.zeros(2, clients, models, dtype=torch.float64, device=rank.device)

        def logits_of(weights: Tree, x: Tensor) -> Tensor:
            return functional_call(self.module, weights, (x,))  # type: ignore[no-any-return]  # a module's output

        of_all = vmap(vmap(logits_of, in_dims=(0, None)), in_dims=(0, 0))
        for batch in _batches(samples, rank, sizes, _in_order(samples, 1), EVALUATION_BATCH):
            a = batch.clients
            logits = of_all(tree_map(lambda t, a=a: t[:a], ranked), batch.x[:, 0])  # [a, S, B, classes]
            y = batch.y.expand(-1, models, -1)
            weight = (batch.weight * batch.share[:, None, None]).expand(-1, models, -1)
            loss = F.cross_entropy(logits.flatten(0, 2), y.flatten(), reduction="none").view_as(y)
            total[0, :a] += (loss * weight).sum(-1, dtype=torch.float64)
            total[1, :a] += ((logits.argmax(-1) == y) * weight).sum(-1, dtype=torch.float64)
        loss, accuracy = total.float()
        return Scores(_unranked(loss, rank), _unranked(accuracy, rank))


def _by_size(samples: Samples) -> tuple[Tensor, list[int]]:
    """Positions of the clients, largest first, and their sizes in that order."""
    rank = samples.count.argsort(descending=True, stable=True)
    return rank, samples.count[rank].tolist()


def _unranked(ranked: Tensor, rank: Tensor) -> Tensor:
    result = torch.empty_like(ranked)
    result[rank] = ranked
    return result


def _in_order(samples: Samples, models: int) -> Tensor:
    order = torch.arange(samples.longest, device=samples.count.device)
    return order.expand(len(samples.count), models, -1)


def _batches(samples: Samples, rank: Tensor, sizes: list[int], order: Tensor, batch_size: int) -> Iterator[Batch]:
    """Steps of one pass; ``order[C, K, longest]``, like the sizes, is sorted by rank."""
    start, count = samples.start[rank], samples.count[rank]
    position = torch.arange(samples.longest, device=rank.device)
    for begin in range(0, samples.longest, batch_size):
        active = sum(size > begin for size in sizes)
        at = slice(begin, begin + batch_size)
        valid = (position[at] < count[:active, None])[:, None]  # [a, 1, B]
        rows = start[:active, None, None] + order[:active, :, at].where(valid, 0)
        b = (count[:active] - begin).clamp_max(batch_size)
        yield Batch(
            clients=active,
            x=as_input(samples.x[rows]),
            y=samples.y[rows],
            weight=(valid / b[:, None, None]).expand(rows.shape),
            share=b / count[:active],
        )
