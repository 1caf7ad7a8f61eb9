"""Models in evaluation mode, a batch at a time: outputs, losses, scores and features of the clients' samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from fedfew.engines.dropout import one_pass
from fedfew.engines.loss import shifted
from fedfew.federation import Samples
from fedfew.local import Through
from fedfew.stack import Tree, leaves, take, tree_map
from fedfew.tasks import Criterion

EVALUATION_BATCH = 512
IMAGES_ON_CPU = 128  # then the activations of a small CNN stay in the cache


@dataclass(frozen=True)
class ModelScores:
    """Mean loss and the task's score (accuracy, R², …), ``[C, S]``: client i under candidate model s."""

    loss: Tensor
    score: Tensor


@dataclass(frozen=True)
class MixtureScores:
    """Of C clients: the test scores of each one's mixture of models, and what it is made of."""

    choice: Tensor  # [C]: the model with the least loss on the client's own samples
    weights: Tensor  # [C, S]
    mixed: ModelScores  # [C]
    single: Tensor  # [C]: the score of the chosen model alone


def forward(module: nn.Module, weights: Tree, x: Tensor, through: Through | None = None) -> Tensor:
    """The module's output with these weights in place of its own."""
    if through is None:
        with one_pass():
            return functional_call(module, weights, (x,))  # type: ignore[arg-type]  # a replica's tree is flat
    submodule = module.get_submodule(through.submodule)
    hook = submodule.register_forward_pre_hook(lambda _, inputs: (through.change(inputs[0]), *inputs[1:]))
    try:
        return forward(module, weights, x)
    finally:
        hook.remove()


def evaluation_batches(rows: Tensor, size: int | None = None) -> tuple[Tensor, ...]:
    """Rows a batch at a time. A last batch of one row joins the batch before: one sample has no variance, which a module with
    BatchNorm but without running statistics would need."""
    size = size or EVALUATION_BATCH
    if len(rows) > size and len(rows) % size == 1:
        *before, last, alone = rows.split(size)
        return (*before, torch.cat([last, alone]))
    return rows.split(size)


def totals(criterion: Criterion, y: Tensor, clients: int, models: int) -> Tensor:
    """Zeros to add the criterion's terms to, [terms, C, S]."""
    return torch.zeros(criterion.number_of_terms(y), clients, models, dtype=torch.float64, device=y.device)


@dataclass(frozen=True)
class Evaluation:
    """One model after another, in plain PyTorch. The module must be in evaluation mode, and gradients off."""

    module: nn.Module
    criterion: Criterion
    mixes_samples: bool  # in evaluation, as BatchNorm without running statistics does: clients must not share a batch
    laid_out: Callable[[Tensor], Tensor]  # inputs in the memory layout that is fastest

    def batches(self, rows: Tensor, samples: Samples, on_gpu: int = EVALUATION_BATCH) -> tuple[Tensor, ...]:
        """Rows of these samples a batch at a time, of a size that is fast; where outcomes depend on it, of one size."""
        if self.mixes_samples:
            return evaluation_batches(rows)
        on_cpu = IMAGES_ON_CPU if samples.x.ndim == 4 else EVALUATION_BATCH
        return evaluation_batches(rows, on_gpu if rows.is_cuda else on_cpu)

    def shared_scores(self, params: Tree, samples: Samples) -> ModelScores:
        """Scores of models ``[1, S, …]`` that all clients share: one pass over all rows, then a sum per client."""
        models = range(leaves(params)[0].shape[1])
        rows, owner = samples.every_row
        total = totals(self.criterion, samples.y, len(samples.count), len(models))
        for at, who in zip(*(self.batches(t, samples, on_gpu=8 * EVALUATION_BATCH) for t in (rows, owner)), strict=True):
            self._add(total, self._outputs(take(params, 0), models, samples, at, who), samples.y[at], who)
        return ModelScores(*self.criterion.scores(total / samples.count[:, None]))

    def mixture_scores(self, params: Tree, samples: Samples, log_weights: Tensor) -> tuple[ModelScores, ModelScores]:
        """Scores ``[C, 1]`` of each client's mixture of models ``[1 or C, S, …]``, and ``[C, S]`` of its single models."""
        clients, models = log_weights.shape
        total = totals(self.criterion, samples.y, clients, models + 1)
        for own, at, who in self._batches(params, samples):
            each = list(self._outputs(own, range(models), samples, at, who))
            mixed = self.criterion.task.mixed(torch.stack(each), log_weights[who].T[..., None])
            self._add(total, [*each, mixed], samples.y[at], who)
        loss, score = self.criterion.scores(total / samples.count[:, None])
        return ModelScores(loss[:, models:], score[:, models:]), ModelScores(loss[:, :models], score[:, :models])

    def outputs(self, params: Tree, samples: Samples, client: int, weights: Tensor) -> Tensor:
        """What a client's mixture of models ``[1 or C, S, …]``, weighted [S], gives for its samples."""
        used = weights.nonzero()[:, 0].tolist()
        own = _models_of(params, client)
        log_weights = weights[used].log().to(samples.y.device)[:, None, None]
        parts = []
        for rows in self.batches(samples.rows(client), samples):
            each = list(self._outputs(own, used, samples, rows, torch.full_like(rows, client)))
            parts.append(each[0] if len(each) == 1 else self.criterion.task.mixed(torch.stack(each), log_weights))
        return torch.cat(parts)

    def sample_losses(self, params: Tree, samples: Samples) -> Tensor:
        """The loss of each sample under models ``[1 or C, S, …]``: ``[C, S, longest]``, 0 beyond a client's samples."""
        models = range(leaves(params)[0].shape[1])
        found: Tensor | None = None
        for own, at, who in self._batches(params, samples):
            for s, outputs in enumerate(self._outputs(own, models, samples, at, who)):
                if found is None:
                    found = outputs.new_zeros(len(samples.count), len(models), samples.longest)
                found[who, s, at - samples.start[who]] = self.criterion.losses(outputs, samples.y[at])
        assert found is not None, "there is no client"
        return found

    def features(self, params: Tree, samples: Samples, head: str) -> Tensor:
        """What enters the submodule ``head`` of ``params[C, 1, …]`` for each client's samples, ``[C, longest, …]``; 0 beyond."""
        of_clients = [self._features(take(take(params, i), 0), samples, i, head) for i in range(len(samples.count))]
        return pad_sequence(of_clients, batch_first=True)

    def _features(self, weights: Tree, samples: Samples, client: int, head: str) -> Tensor:
        seen: list[Tensor] = []

        def keep(features: Tensor) -> Tensor:
            seen.append(features)
            return features

        for batch in self.batches(samples.rows(client), samples):
            forward(self.module, weights, self.laid_out(samples.inputs(batch)), Through(head, keep))
        return torch.cat(seen)

    def _batches(self, params: Tree, samples: Samples) -> Iterator[tuple[Tree, Tensor, Tensor]]:
        """Models ``[S, …]``, rows to evaluate them on, and whose each row is. Clients that share their models share batches."""
        shared = leaves(params)[0].shape[0] == 1 and not self.mixes_samples
        for i in [0] if shared else range(len(samples.count)):
            rows, owner = samples.every_row if shared else (samples.rows(i), torch.full_like(samples.rows(i), i))
            for at, who in zip(*(self.batches(t, samples) for t in (rows, owner)), strict=True):
                yield _models_of(params, i), at, who

    def _outputs(self, own: Tree, models: Iterable[int], samples: Samples, at: Tensor, who: Tensor) -> Iterator[Tensor]:
        """The outputs of some of the models ``[S, …]`` for these rows, with the clients' label priors."""
        x, prior = self.laid_out(samples.inputs(at)), None if samples.log_prior is None else samples.log_prior[who]
        return (shifted(forward(self.module, take(own, s), x), prior) for s in models)

    def _add(self, total: Tensor, of_models: Iterable[Tensor], y: Tensor, who: Tensor) -> None:
        for s, outputs in enumerate(of_models):
            for of, term in zip(total, self.criterion.terms(outputs, y), strict=True):
                of[:, s].index_add_(0, who, term.double())


def _models_of(params: Tree, client: int) -> Tree:
    return tree_map(lambda t: t[client if len(t) > 1 else 0], params)
