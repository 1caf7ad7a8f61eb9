"""What an engine does: the local work of a stack of clients.

An engine trains, scores and differentiates replicas ``[clients, models]`` of one module on the clients' own samples. Both engines
see the same batches (:mod:`fedfew.random_streams`) and minimise the same objectives, so they end with the same parameters.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from fedfew import random_streams, tasks
from fedfew.config import LocalTraining
from fedfew.engines import dropout, mixup
from fedfew.engines.loss import shifted, with_client_terms
from fedfew.engines.precision import products
from fedfew.federation import Samples
from fedfew.local import Objective, Projection, Through
from fedfew.models.batch_norm import uses_batch_statistics
from fedfew.models.state import replica_state
from fedfew.stack import Tree, leaves, take, tree_map

Keys = Callable[[int], Tensor]
"""keys(stream): what each replica's random numbers of one kind are drawn from, [C, K]."""


@dataclass(frozen=True)
class Pass:
    """One epoch: the order in which each replica sees its client's samples, its keys for dropout and augmentation, by what share
    the samples of each step are mixed, and what each sample's loss is multiplied by, in that order."""

    lr: float
    order: Tensor  # [C, K, longest]
    dropout: Tensor | None = None  # [C, K]
    augment: Tensor | None = None  # [C, K]
    mixup: Tensor | None = None  # [C, K, steps]
    importance: Tensor | None = None  # [C, K, longest]

    def take(self, at: Tensor | tuple[int, int]) -> Pass:
        """The same for chosen clients, or for a single replica."""
        others = (self.dropout, self.augment, self.mixup, self.importance)
        return Pass(self.lr, self.order[at], *(None if t is None else t[at] for t in others))


@dataclass(frozen=True)
class ModelScores:
    """Mean loss and the task's score (accuracy, R², …), ``[C, S]``: client i under candidate model s."""

    loss: Tensor
    score: Tensor


def forward(module: nn.Module, weights: Tree, x: Tensor, through: Through | None = None) -> Tensor:
    """The module's output with these weights in place of its own."""
    if through is None:
        return functional_call(module, weights, (x,))  # type: ignore[arg-type]  # a replica's tree is flat
    submodule = module.get_submodule(through.submodule)
    hook = submodule.register_forward_pre_hook(lambda _, inputs: (through.change(inputs[0]), *inputs[1:]))
    try:
        return forward(module, weights, x)
    finally:
        hook.remove()


class UnsupportedModuleError(TypeError):
    """The stacked engine cannot take this module."""


BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam and AdamW: PyTorch's defaults
REMEDY = "; use engine='sequential'"  # how the message of such an error ends


class Engine(ABC):
    name: ClassVar[str]
    why: str = ""  # it was chosen, where it was not asked for by name

    def __init__(self, module: nn.Module, training: LocalTraining, seed: int) -> None:
        self.module = out_of_place(dropout.make_counted(module)).train()
        self.training = training
        self.criterion = tasks.criterion(training.loss)
        self.seed = seed
        self.drops = any(isinstance(m, dropout.CountedDropout) for m in self.module.modules())
        self.mixes_samples = uses_batch_statistics(self.module)  # so clients must not share a batch in evaluation
        self._buffers = {name for name, _ in self.module.named_buffers()}

    @property
    def local_epochs(self) -> int:
        return self.training.local_epochs

    def lr(self, round: int) -> float:
        return self.training.lr_of(round)

    def clock(self) -> float:
        """Seconds that the run has taken since some moment; in a pack, its share of what the runs did together."""
        return time.perf_counter()

    def steps(self, count: Tensor, epochs: int) -> Tensor:
        """Step s of τ moves by Σ_{j ≤ τ − s} ρ^j of its gradient; the sum over s is (τ − ρ(1 − ρ^τ)/(1 − ρ))/(1 − ρ)."""
        tau = epochs * torch.ceil(count.double() / self.training.batch_size)
        rho = self.training.momentum if self.training.optimizer == "sgd" else 0.0
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    # -- what methods and the training loop ask for --------------------------------------------------------------------------

    def train(
        self,
        params: Tree,
        samples: Samples,
        clients: Tensor,
        round: int,
        objective: Objective,
        context: Tree,
        epochs: int,
        first_epoch: int = 0,
        project: Projection | None = None,
        weights: Tensor | None = None,
    ) -> tuple[Tree, Tensor]:
        """Trained copies of ``params[C, K, …]`` and, per replica, the mean reported loss over the last epoch.

        clients: the identities [C] that the batch orders are drawn from; context: a tree [C, K, …], or ``{}``; weights: of the
        samples, [C, K, longest].
        """
        models = leaves(params)[0].shape[1]
        numbers = range(first_epoch, first_epoch + epochs)
        keys = (partial(self.keys, clients, models, round, epoch) for epoch in numbers)
        passes = (self.pass_of(samples, self.lr(round), of_epoch, weights) for of_epoch in keys)
        return self.train_passes(params, samples, passes, objective, context, project)

    def train_passes(
        self,
        params: Tree,
        samples: Samples,
        passes: Iterator[Pass],
        objective: Objective,
        context: Tree,
        project: Projection | None,
    ) -> tuple[Tree, Tensor]:
        """The same, with the passes over the samples given."""
        models = leaves(params)[0].shape[1]
        self.module.train()
        with self._products(samples):
            return self._train(params, samples, passes, objective, with_client_terms(context, samples, models), project)

    def keys(self, clients: Tensor, models: int, round: int, epoch: int, stream: int) -> Tensor:
        """What the random numbers of each replica in an epoch are drawn from, [C, K]."""
        if stream == random_streams.BATCH_ORDER:
            return random_streams.order_keys(self.seed, round, clients, models, epoch)
        model = torch.arange(models, device=clients.device)
        return random_streams.count(stream, self.seed, round, epoch, clients[:, None], model)

    def pass_of(self, samples: Samples, lr: float, keys: Keys, weights: Tensor | None) -> Pass:
        """An epoch of replicas that draw from these keys, the weights of their samples being [C, K, longest]."""

        def of(stream: int) -> Tensor:
            return keys(stream).to(samples.count.device)

        order = random_streams.permutations(of(random_streams.BATCH_ORDER), samples.count, samples.longest)
        steps = -(-samples.longest // self.training.batch_size)
        return Pass(
            lr,
            order,
            of(random_streams.DROPOUT) if self.drops else None,
            of(random_streams.AUGMENT) if self.training.augment != "none" else None,
            mixup.shares(of(random_streams.MIXUP), steps, self.training.mixup) if self.training.mixup else None,
            None if weights is None else weights.gather(2, order),
        )

    def losses(self, params: Tree, samples: Samples) -> Tensor:
        """Mean loss ``[C, S]`` in evaluation mode."""
        return self.score(params, samples).loss

    def score(self, params: Tree, samples: Samples) -> ModelScores:
        """Loss and score of ``params[C, S, …]`` on each client's samples; ``[1, S, …]`` is shared by all clients."""
        return self.scores(params, [samples])[0]

    def scores(self, params: Tree, splits: Sequence[Samples]) -> list[ModelScores]:
        """The same on several splits of the same clients' samples; an engine may leave out scores (NaN) but on the last."""
        if self.module.training:
            self.module.eval()
        with torch.no_grad(), self._products(splits[0]):
            return self._scores(params, splits)

    def score_mixture(self, params: Tree, samples: Samples, weights: Tensor) -> tuple[ModelScores, ModelScores]:
        """Scores ``[C, 1]`` of each client's mixture of outputs, e.g. Σ_s weights[i, s]·p_s(y|x), and ``[C, S]`` of its single
        models."""
        self.module.eval()
        with torch.no_grad(), self._products(samples):
            return self._score_mixture(params, samples, weights.log())

    def _score_mixture(self, params: Tree, samples: Samples, log_weights: Tensor) -> tuple[ModelScores, ModelScores]:
        clients, models = log_weights.shape
        shared = leaves(params)[0].shape[0] == 1 and not self.mixes_samples
        total = self._totals(samples, clients, models + 1)
        for i in [0] if shared else range(clients):
            rows, owner = rows_of(samples) if shared else (samples.rows(i), torch.full_like(samples.rows(i), i))
            own = tree_map(lambda t, i=i: t[i if len(t) > 1 else 0], params)
            parts = zip(evaluation_batches(rows), evaluation_batches(owner), strict=True)
            for at, who in parts:
                x, y = samples.inputs(at), samples.y[at]
                prior = None if samples.log_prior is None else samples.log_prior[who]
                each = [shifted(forward(self.module, tree_map(lambda t, s=s: t[s], own), x), prior) for s in range(models)]
                mixed = self.criterion.task.mixed(torch.stack(each), log_weights[who].T[..., None])
                for s, outputs in enumerate([*each, mixed]):
                    for of, term in zip(total, self.criterion.terms(outputs, y), strict=True):
                        of[:, s].index_add_(0, who, term.double())
        loss, score = self.criterion.scores(total / samples.count[:, None])
        return ModelScores(loss[:, models:], score[:, models:]), ModelScores(loss[:, :models], score[:, :models])

    def outputs(self, params: Tree, samples: Samples, client: int, weights: Tensor) -> Tensor:
        """What a client's mixture of models ``params[1 or C, S, …]``, weighted [S], gives for its samples."""
        self.module.eval()
        used = weights.nonzero()[:, 0].tolist()
        own = tree_map(lambda t: t[client if len(t) > 1 else 0], params)
        prior = None if samples.log_prior is None else samples.log_prior[client]
        log_weights = weights[used].log().to(samples.y.device)[:, None, None]
        parts = []
        with torch.no_grad(), self._products(samples):
            for rows in evaluation_batches(samples.rows(client)):
                x = samples.inputs(rows)
                each = [shifted(forward(self.module, tree_map(lambda t, s=s: t[s], own), x), prior) for s in used]
                parts.append(each[0] if len(each) == 1 else self.criterion.task.mixed(torch.stack(each), log_weights))
        return torch.cat(parts)

    def gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        """Gradient of each client's mean training loss at ``params[C, K, …]``, and that loss ``[C, K]``."""
        self.module.eval()
        with self._products(samples):
            return self._gradient(params, samples)

    def sample_losses(self, params: Tree, samples: Samples) -> Tensor:
        """The loss of each sample under ``params[1 or C, S, …]`` in evaluation mode, ``[C, S, longest]``; 0 beyond."""
        self.module.eval()
        clients, models = len(samples.count), leaves(params)[0].shape[1]
        shared = leaves(params)[0].shape[0] == 1 and not self.mixes_samples
        every, owner = rows_of(samples)
        found: Tensor | None = None
        with torch.no_grad(), self._products(samples):
            for i in [0] if shared else range(clients):
                rows, owners = (every, owner) if shared else (samples.rows(i), torch.full_like(samples.rows(i), i))
                own = tree_map(lambda t, i=i: t[i if len(t) > 1 else 0], params)
                for at, who in zip(evaluation_batches(rows), evaluation_batches(owners), strict=True):
                    x, y = samples.inputs(at), samples.y[at]
                    prior = None if samples.log_prior is None else samples.log_prior[who]
                    for s in range(models):
                        logits = shifted(forward(self.module, take(own, s), x), prior)
                        if found is None:
                            found = logits.new_zeros(clients, models, samples.longest)
                        found[who, s, at - samples.start[who]] = self.criterion.losses(logits, y)
        assert found is not None, "there is no client"
        return found

    def features(self, params: Tree, samples: Samples, head: str) -> Tensor:
        """What enters the submodule ``head`` of ``params[C, 1, …]`` for each client's samples, ``[C, longest, …]``; 0 beyond."""
        self.module.eval()
        with torch.no_grad(), self._products(samples):
            of_clients = [self._features(take(take(params, i), 0), samples, i, head) for i in range(len(samples.count))]
        return pad_sequence(of_clients, batch_first=True)

    def _features(self, weights: Tree, samples: Samples, client: int, head: str) -> Tensor:
        seen: list[Tensor] = []

        def keep(features: Tensor) -> Tensor:
            seen.append(features)
            return features

        for batch in evaluation_batches(samples.rows(client)):
            forward(self.module, weights, samples.inputs(batch), Through(head, keep))
        return torch.cat(seen)

    def labels(self, samples: Samples) -> Tensor:
        """Each client's labels, ``[C, longest]``; −1 beyond."""
        of_clients = [samples.y[samples.rows(i)] for i in range(len(samples.count))]
        return pad_sequence(of_clients, batch_first=True, padding_value=-1)

    @abstractmethod
    def _gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]: ...

    @abstractmethod
    def _train(
        self,
        params: Tree,
        samples: Samples,
        passes: Iterator[Pass],
        objective: Objective,
        context: Tree,
        project: Projection | None,
    ) -> tuple[Tree, Tensor]: ...

    @abstractmethod
    def _score(self, params: Tree, samples: Samples) -> ModelScores: ...

    # -- shared by both ------------------------------------------------------------------------------------------------------

    def _scores(self, params: Tree, splits: Sequence[Samples]) -> list[ModelScores]:
        if leaves(params)[0].shape[0] > 1:
            return [self._score(params, samples) for samples in splits]
        if self.mixes_samples:
            each = tree_map(lambda t: t.expand(len(splits[0].count), *t.shape[1:]), params)
            return [self._score(each, samples) for samples in splits]
        return [self._score_shared(params, samples) for samples in splits]

    def _products(self, samples: Samples) -> AbstractContextManager[None]:
        return products(self.training.precision, samples.y.device)

    def _score_shared(self, params: Tree, samples: Samples) -> ModelScores:
        """The same S models on everybody's samples: one pass over all rows, then a sum per client."""
        models = leaves(params)[0].shape[1]
        rows, owner = rows_of(samples)
        total = self._totals(samples, len(samples.count), models)
        size = 8 * EVALUATION_BATCH if rows.is_cuda else EVALUATION_BATCH
        for at, who in zip(rows.split(size), owner.split(size), strict=True):
            x, y = samples.inputs(at), samples.y[at]
            prior = None if samples.log_prior is None else samples.log_prior[who]
            for s in range(models):
                outputs = shifted(forward(self.module, tree_map(lambda t, s=s: t[0, s], params), x), prior)
                for of, term in zip(total, self.criterion.terms(outputs, y), strict=True):
                    of[:, s].index_add_(0, who, term.double())
        return ModelScores(*self.criterion.scores(total / samples.count[:, None]))

    def _totals(self, samples: Samples, clients: int, models: int) -> Tensor:
        """Room for sums of the criterion's terms, [terms, C, S]."""
        return torch.zeros(
            self.criterion.number_of_terms(samples.y), clients, models, dtype=torch.float64, device=samples.y.device
        )

    def trainable(self, path: str) -> bool:
        """Is the leaf at this path of a tree trained? All are but the module's buffers."""
        return path.rsplit("/", 1)[-1] not in self._buffers

    def bytes_per_replica(self, samples: Samples) -> int:
        """Memory one replica takes in training: parameters, gradient, copies, and what autograd keeps of a batch."""
        weights = sum(t.numel() * t.element_size() for t in replica_state(self.module).values())
        moments = 4 if self.training.optimizer != "sgd" else 0  # two, and what a step computes on the way
        return (5 + moments) * weights + 2 * self.training.batch_size * self.bytes_per_sample(samples)

    def bytes_per_sample(self, samples: Samples) -> int:
        """What autograd keeps of one sample on its way through the model, besides frozen parameters, which are there once."""
        kept = 0
        seen = {parameter.data_ptr() for parameter in self.module.parameters() if not parameter.requires_grad}

        def pack(tensor: Tensor) -> Tensor:
            nonlocal kept
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                kept += tensor.numel() * tensor.element_size()
            return tensor

        rows = torch.arange(min(len(samples.y), self.training.batch_size), device=samples.y.device)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            self.criterion.total(self.module(samples.inputs(rows)), samples.y[rows])
        return -(-kept // len(rows))


EVALUATION_BATCH = 512


def out_of_place(module: nn.Module) -> nn.Module:
    """The module itself, in which no activation writes over its input: the same numbers, but vmap and autograd need the input."""
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]  # a plain attribute of PyTorch's activations
    return module


def evaluation_batches(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows a batch at a time. A last one that is alone joins the batch before: one sample has no variance, which a module with
    BatchNorm but without running statistics would ask for."""
    if len(rows) > EVALUATION_BATCH and len(rows) % EVALUATION_BATCH == 1:
        *before, last, alone = rows.split(EVALUATION_BATCH)
        return (*before, torch.cat([last, alone]))
    return rows.split(EVALUATION_BATCH)


def rows_of(samples: Samples) -> tuple[Tensor, Tensor]:
    """All rows of these clients, and whose (as a position in the stack) each is."""
    owner = torch.repeat_interleave(torch.arange(len(samples.count), device=samples.count.device), samples.count)
    first = samples.count.cumsum(0) - samples.count
    return samples.start[owner] + torch.arange(len(owner), device=owner.device) - first[owner], owner
