"""All replicas at once: one batched computation a step for every client and model, through ``torch.func.vmap``.

Clients are sorted by size, so those that have finished their epoch leave the stack and nobody trains on padding; only the last,
partial batch of a client is filled up, with samples that weigh nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch._C._functorch import _set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]  # in PyTorch's own C

from fedfew import random_streams
from fedfew.config import LocalTraining
from fedfew.engines.augment import black, moved, moves
from fedfew.engines.base import REMEDY, Engine, Pass, UnsupportedModuleError
from fedfew.engines.evaluation import EVALUATION_BATCH, MixtureScores, ModelScores
from fedfew.engines.freed_memory import keep_freed
from fedfew.engines.loss import with_client_terms
from fedfew.engines.memory import allowance
from fedfew.engines.mixup import mixed, of_both
from fedfew.engines.stacked import kernels, optimizer
from fedfew.engines.stacked.ahead import Ahead
from fedfew.engines.stacked.batch_norm import make_masked
from fedfew.engines.stacked.batch_scores import BatchScores
from fedfew.engines.stacked.batches import Batch, Steps, batches_of, in_order, precision, unranked
from fedfew.engines.stacked.captured import CapturedTraining
from fedfew.engines.stacked.differentiation import Differentiation, Front
from fedfew.engines.stacked.epoch import RecordedEpochs
from fedfew.engines.stacked.fused import make_fused
from fedfew.engines.stacked.linear import make_linear
from fedfew.engines.stacked.mixing import Rows
from fedfew.engines.stacked.one_pass import OnePass
from fedfew.engines.stacked.recording import without_kernels
from fedfew.engines.stacked.side_by_side import SideBySide
from fedfew.federation import Samples
from fedfew.local import LocalEpochs, Objective, Projection, cross_entropy
from fedfew.stack import Tree, branch, leaves, named_leaves, tensor, tree_map

FEWEST = 64  # clients scored in one pass where not all fit: of fewer, filling up and gathering would outweigh the arithmetic


class Stacked(Engine):
    name: ClassVar[str] = "stacked"

    def __init__(self, module: nn.Module, training: LocalTraining, seed: int) -> None:
        super().__init__(module, training, seed)
        self.module = make_linear(make_masked(self.module))
        self.differentiation = Differentiation(self)
        self._captured: CapturedTraining | None = None
        self._ahead = Ahead(self.passes_of)
        self._sample_bytes: int | None = None
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        self._side_by_side = SideBySide(torch.get_num_threads() if device.type == "cpu" else 1)
        self._one_pass, self._batch_scores = OnePass(self, self._side_by_side), BatchScores(self)
        self._epochs = RecordedEpochs(self._side_by_side)
        on_cpu = self.module if device.type == "cpu" else copy.deepcopy(self.module).cpu()  # for which no kernel is compiled
        self.rows = Rows(on_cpu, training.batch_size)
        if kernels.usable(device):
            self.module = make_fused(self.module, training.precision)
        if device.type == "cuda":
            self._captured = CapturedTraining(self)
        else:
            keep_freed()  # a replay's tensors of a megabyte each would be asked for page by page

    def within_a_round(self) -> AbstractContextManager[None]:
        return self._side_by_side.within_a_round()

    def train(self, work: LocalEpochs) -> tuple[Tree, Tensor]:
        captured = self._capturing(work.samples)
        if captured is None:
            return super().train(work)
        trained = self.train_passes(work, self._ahead.of(work))
        first = self._ahead.draw(work)
        if first is not None:
            captured.begin(work.samples, first)
        return trained

    def _capturing(self, samples: Samples) -> CapturedTraining | None:
        """Features in host memory travel batch by batch: there is nothing to capture."""
        return self._captured if samples.x.is_cuda else None

    def _train(self, work: LocalEpochs, passes: Iterator[Pass]) -> tuple[Tree, Tensor]:
        trained = self._trained(work, passes)
        self.rows.check(work.samples)  # after the first steps, in which vmap says what it cannot take
        return trained

    def _trained(self, work: LocalEpochs, passes: Iterator[Pass]) -> tuple[Tree, Tensor]:
        params, samples, objective, context, project = work.params, work.samples, work.objective, work.context, work.project
        clients, models = leaves(params)[0].shape[:2]
        rank, sizes = samples.largest_first
        captured = self._capturing(samples)
        if captured is not None:
            trained, mean_loss = captured.train(params, samples, rank, sizes, passes, objective, context, project)
            back = rank.argsort()
            return tree_map(lambda t: t.index_select(0, back), trained), mean_loss.index_select(0, back)
        weights = tree_map(lambda t: t.index_select(0, rank).flatten(0, 1), params)  # a copy, which is trained
        fixed = tree_map(lambda t: t.index_select(0, rank).flatten(0, 1), context)
        state = optimizer.fresh_state(self.training, self.trained(weights))
        mean_loss = torch.zeros(())
        dtype = precision(weights)

        def steps_of(sizes: tuple[int, ...]) -> Steps:
            return Steps.of(sizes, models, self.training.batch_size, False, dtype, rank.device)

        for one_pass in passes:
            ranked = one_pass.take(rank)
            lr: float | Tensor = one_pass.lr
            if self.training.scheduled:
                lr = torch.tensor(lr, dtype=dtype, device=rank.device)
            epoch = partial(self._epoch, objective, state, project)
            plain = project is None and optimizer.is_plain(self.training)
            if plain and self._epochs.fit(samples, ranked, self.training.batch_size):
                mean_loss = self._epochs.run(objective, epoch, steps_of, sizes, samples, rank, ranked, lr, weights, fixed)
            else:
                mean_loss = epoch(steps_of(tuple(sizes)), samples, rank, ranked, lr, weights, fixed)
        weights = tree_map(lambda t: t.unflatten(0, (clients, models)), weights)
        if sizes == samples.count.tolist():  # sorted as they were
            return weights, mean_loss
        return tree_map(lambda t: unranked(t, rank), weights), unranked(mean_loss, rank)

    def _epoch(
        self,
        objective: Objective,
        state: optimizer.State,
        project: Projection | None,
        steps: Steps,
        samples: Samples,
        rank: Tensor,
        ranked: Pass,
        lr: float | Tensor,
        weights: Tree,
        fixed: Tree,
    ) -> Tensor:
        """Move the weights by the steps of one epoch; the mean of the losses reported."""
        fronts: dict[int, Front] = {}
        mean_loss = torch.zeros(())
        models = ranked.order.shape[1]
        key = None if ranked.dropout is None else ranked.dropout.flatten()
        batches = steps.batches(samples, rank, ranked.order)
        for step, batch in enumerate(self._augmented(batches, ranked.augment, samples)):
            front = fronts.get(batch.clients)
            if front is None:
                front = fronts[batch.clients] = self.differentiation.front(
                    weights, fixed, batch.clients * models, objective, key is not None, ranked.importance is not None, True
                )
            of_step = None if key is None else random_streams.count(key[: front.replicas], step)
            x, y, weight = (t.flatten(0, 1) for t in (batch.x, batch.y, batch.weight))
            importance = None
            if ranked.importance is not None:
                window = slice(step * self.training.batch_size, step * self.training.batch_size + weight.shape[1])
                importance = ranked.importance[: batch.clients, :, window].flatten(0, 1)
            if ranked.mixup is not None:
                importance = None if importance is None else of_both(importance, weight)
                x, y, weight = mixed(x, y, weight, ranked.mixup[: batch.clients, :, step].flatten())
            reported = self.differentiation.step(front, x, y, weight, importance, of_step, lr, state, project)
            reported = reported.unflatten(0, (batch.clients, -1))
            if step == 0:
                mean_loss = torch.zeros_like(reported)
            mean_loss[: batch.clients].addcmul_(reported, batch.share.reshape(-1, *[1] * (reported.ndim - 1)))
        return mean_loss

    def _augmented(self, batches: Iterator[Batch], key: Tensor | None, samples: Samples) -> Iterator[Batch]:
        """The batches of an epoch, their images flipped and shifted by the replicas' keys [C, K]."""
        if key is None:
            yield from batches
            return
        shifts = moves(self.training.augment, key, torch.arange(samples.longest, device=key.device))
        for step, batch in enumerate(batches):
            first = step * self.training.batch_size
            of_batch = shifts[: batch.clients, :, first : first + batch.x.shape[2]]
            yield replace(batch, x=moved(batch.x, of_batch, black(samples)))

    def trained(self, weights: Tree) -> list[tuple[str, Tensor]]:
        """The leaves that training moves, with their paths."""
        return [(path, t) for path, t in named_leaves(weights) if self.trainable(path)]

    @contextmanager
    def or_unsupported(self) -> Iterator[None]:
        """Around vmap. Operations that it makes one at a time (attention in evaluation) are no reason to warn the user."""
        _set_vmap_fallback_warning_enabled(False)
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise UnsupportedModuleError(
                f"the stacked engine cannot take {type(self.module).__name__}: torch.func.vmap says "
                f"«{' '.join(str(error).split())[:200]}»{REMEDY}"
            ) from error
        finally:
            _set_vmap_fallback_warning_enabled(True)

    def _gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        parts = [self._gradient_together(*part) for part in self._that_fit(params, samples)]
        return tree_map(lambda *of: torch.cat(of), *(tree for tree, _ in parts)), torch.cat([loss for _, loss in parts])

    def _gradient_together(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        clients, models = leaves(params)[0].shape[:2]
        rank, sizes = samples.largest_first
        weights = tree_map(lambda t: t[rank].flatten(0, 1), params)
        context = tree_map(lambda t: t[rank].flatten(0, 1), with_client_terms({}, replace(samples, class_weights=None), models))
        total = tree_map(torch.zeros_like, weights)
        mean_loss = torch.zeros(clients, models, dtype=precision(params), device=rank.device)
        for batch in batches_of(samples, rank, sizes, in_order(samples, models), EVALUATION_BATCH, params, join_last=True):
            replicas = batch.clients * models
            x, y, weight = (t.flatten(0, 1) for t in (batch.x, batch.y, batch.weight * batch.share[:, None, None]))
            part, fixed = (tree_map(lambda t, r=replicas: t[:r], tree) for tree in (weights, context))
            gradients, loss = self.differentiation.differentiate(cross_entropy, part, x, y, weight, fixed, None)
            for (_, into), gradient in zip(self.trained(tree_map(lambda t, r=replicas: t[:r], total)), gradients, strict=True):
                if gradient is not None:
                    into += gradient
            mean_loss[: batch.clients] += loss.unflatten(0, (batch.clients, models))
        return tree_map(lambda t: unranked(t.unflatten(0, (clients, models)), rank), total), unranked(mean_loss, rank)

    def clients_at_once(self, params: Tree, splits: Sequence[Samples]) -> int:
        """How many clients are scored in one pass."""
        return self._one_pass.clients_at_once(params, splits, self._bytes_per_sample(splits[0]))

    def chosen_scores(self, several: Sequence[Tree], own: Samples, test: Samples) -> list[tuple[Tensor, ModelScores]]:
        if not self._at_once(several, own, test):
            return super().chosen_scores(several, own, test)
        with self._evaluating(own):
            return self._one_pass.chosen(several, own, test)

    def weighed_scores(self, several: Sequence[Tree], own: Samples, test: Samples, temperature: float) -> list[MixtureScores]:
        if not self._at_once(several, own, test):
            return super().weighed_scores(several, own, test, temperature)
        with self._evaluating(own):
            return self._one_pass.weighed(several, own, test, temperature)

    def _at_once(self, several: Sequence[Tree], own: Samples, test: Samples) -> bool:
        """Are these stacks of several kinds, and small enough to be scored together?"""
        at_once = min(self.clients_at_once(params, [own, test]) for params in several)
        return len(several) > 1 and at_once >= len(several) * len(own.count)

    def _scores(self, params: Tree, splits: Sequence[Samples]) -> list[ModelScores]:
        clients, shared = len(splits[0].count), leaves(params)[0].shape[0] == 1
        each = self.clients_at_once(params, splits)
        if each >= clients:
            return self._one_pass.scores(params, splits)
        if each < FEWEST or splits[0].y.is_cuda:
            return super()._scores(params, splits)
        found = []
        for at in torch.arange(clients).split(max(FEWEST, each // 4)):  # what stays in the cache is twice as fast
            part = params if shared else tree_map(lambda t, at=at: t[at[0] : at[-1] + 1], params)
            found.append(self._one_pass.scores(part, [s.take(at) for s in splits]))
        of_splits = zip(*found, strict=True)
        return [ModelScores(torch.cat([s.loss for s in of]), torch.cat([s.score for s in of])) for of in of_splits]

    def _score_mixture(self, params: Tree, samples: Samples, log_weights: Tensor) -> tuple[ModelScores, ModelScores]:
        clients, models = leaves(params)[0].shape[:2]
        if self._one_pass.clients_at_once(params, [samples], self._bytes_per_sample(samples)) >= len(samples.count):
            (every,) = self._one_pass.scores(params, [samples], log_weights)
        elif clients > 1:
            every = self._score(params, samples, log_weights)
        elif samples.y.is_cuda and not self.mixes_samples:
            every = self._batch_scores.of_everyone(params, samples, log_weights)
        else:
            return super()._score_mixture(params, samples, log_weights)
        single, mixed = (ModelScores(every.loss[:, at], every.score[:, at]) for at in (slice(models), slice(models, None)))
        return mixed, single

    def _score(self, params: Tree, samples: Samples, log_weights: Tensor | None = None) -> ModelScores:
        """Scores ``[C, S]``; with log_weights ``[C, S]`` those of the mixture, too, as the last column."""
        weighed: Tree = {"params": params} | ({} if log_weights is None else {"log_weights": log_weights})
        parts = []
        for part, of in self._that_fit(weighed, samples):
            mixing = tensor(part, "log_weights") if log_weights is not None else None
            parts.append(self._batch_scores.of_clients(branch(part, "params"), of, mixing))
        return ModelScores(torch.cat([part.loss for part in parts]), torch.cat([part.score for part in parts]))

    def _score_shared(self, params: Tree, samples: Samples) -> ModelScores:
        return self._batch_scores.of_everyone(params, samples) if samples.y.is_cuda else super()._score_shared(params, samples)

    def _bytes_per_sample(self, samples: Samples) -> int:
        if self._sample_bytes is None:
            self._sample_bytes = self.bytes_per_sample(samples)
        return self._sample_bytes

    def bytes_per_sample(self, samples: Samples) -> int:
        if not samples.y.is_cuda:
            return super().bytes_per_sample(samples)
        return without_kernels(lambda: super(Stacked, self).bytes_per_sample(samples))

    def _that_fit(self, params: Tree, samples: Samples) -> Iterator[tuple[Tree, Samples]]:
        """As many clients at a time as memory takes: a batch is larger than in training."""
        clients, models = leaves(params)[0].shape[:2]
        each = models * min(samples.longest, EVALUATION_BATCH) * self._bytes_per_sample(samples)
        for at in torch.arange(clients).split(max(1, allowance(samples.y.device) // 4 // each)):
            part = slice(int(at[0]), int(at[-1]) + 1)
            yield tree_map(lambda t, part=part: t[part], params), samples.take(at)
