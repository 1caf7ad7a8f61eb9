"""What an engine does: the local work of a stack of clients.

An engine trains, scores and differentiates replicas ``[clients, models]`` of one module on the clients' own samples. All engines
see the same batches (:mod:`fedfew.random_streams`) and minimise the same objectives, so they end with the same parameters.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedfew import random_streams, tasks
from fedfew.config import LocalTraining
from fedfew.engines import dropout, mixup
from fedfew.engines.evaluation import Evaluation, MixtureScores, ModelScores
from fedfew.engines.loss import with_client_terms
from fedfew.engines.orders import Orders
from fedfew.engines.precision import products
from fedfew.federation import Samples
from fedfew.local import LocalEpochs, best_model, mixture_weights
from fedfew.models.batch_norm import uses_batch_statistics
from fedfew.models.layers import apart
from fedfew.models.state import replica_state
from fedfew.stack import Tree, leaves, tree_map

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


class UnsupportedModuleError(TypeError):
    """The stacked engine cannot take this module."""


BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam and AdamW: PyTorch's defaults
REMEDY = "; use engine='sequential'"  # how the message of such an error ends


class Engine(ABC):
    name: ClassVar[str]
    why: str = ""  # the reason for choosing it, if the setting is auto

    def __init__(self, module: nn.Module, training: LocalTraining, seed: int) -> None:
        self.module = out_of_place(apart(dropout.make_counted(module))).train()
        self.training = training
        self.criterion = tasks.criterion(training.loss)
        self.seed = seed
        self.drops = any(isinstance(m, dropout.CountedDropout) for m in self.module.modules())
        self.mixes_samples = uses_batch_statistics(self.module)  # so clients must not share a batch in evaluation
        self._buffers = {name for name, _ in self.module.named_buffers()}
        self._orders = Orders(seed)

    @property
    def local_epochs(self) -> int:
        return self.training.local_epochs

    def lr(self, round: int) -> float:
        return self.training.lr_of(round)

    def clock(self) -> float:
        """Seconds that the run has taken since some moment; in a pack, its share of what the runs did together."""
        return time.perf_counter()

    def memory_kept(self) -> AbstractContextManager[None]:
        """For the rounds of a run: what one frees is there for the next."""
        return nullcontext()

    def within_a_round(self) -> AbstractContextManager[None]:
        """For all that happens in a round, training and scores and what is between them."""
        return nullcontext()

    def steps(self, count: Tensor, epochs: int) -> Tensor:
        """Step s of τ moves by Σ_{j ≤ τ − s} ρ^j of its gradient; the sum over s is (τ − ρ(1 − ρ^τ)/(1 − ρ))/(1 − ρ)."""
        tau = epochs * torch.ceil(count.double() / self.training.batch_size)
        rho = self.training.momentum if self.training.optimizer == "sgd" else 0.0
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    # -- what methods and the training loop ask for --------------------------------------------------------------------------

    def train(self, work: LocalEpochs) -> tuple[Tree, Tensor]:
        """Trained copies ``[C, K, …]`` of the replicas and, per replica, the mean reported loss over the last epoch."""
        return self.train_passes(work, self.passes_of(work))

    def passes_of(self, work: LocalEpochs) -> Iterator[Pass]:
        for epoch, keys in enumerate(self.keys_of(work), work.first_epoch):
            yield self.pass_of(work.samples, self.lr(work.round), keys, work.weights, self._orders.of(work, epoch))

    def train_passes(self, work: LocalEpochs, passes: Iterator[Pass]) -> tuple[Tree, Tensor]:
        """The same, with the passes over the samples given."""
        context = with_client_terms(work.context, work.samples, leaves(work.params)[0].shape[1])
        self._switch(True)
        with self._products(work.samples):
            return self._train(replace(work, context=context), passes)

    def keys_of(self, work: LocalEpochs) -> list[Keys]:
        """One entry per epoch."""
        models = leaves(work.params)[0].shape[1]
        numbers = range(work.first_epoch, work.first_epoch + work.epochs)
        return [partial(self.keys, work.clients, models, work.round, epoch) for epoch in numbers]

    def keys(self, clients: Tensor, models: int, round: int, epoch: int, stream: int) -> Tensor:
        """What the random numbers of each replica in an epoch are drawn from, [C, K]."""
        if stream == random_streams.BATCH_ORDER:
            return random_streams.order_keys(self.seed, round, clients, models, epoch)
        model = torch.arange(models, device=clients.device)
        return random_streams.count(stream, self.seed, round, epoch, clients[:, None], model)

    def pass_of(self, samples: Samples, lr: float, keys: Keys, weights: Tensor | None, order: Tensor | None = None) -> Pass:
        """An epoch of replicas that draw from these keys, the weights of their samples being [C, K, longest]; order: drawn from
        them already."""

        def of(stream: int) -> Tensor:
            return keys(stream).to(samples.count.device, non_blocking=True)

        if order is None:
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
        with self._evaluating(splits[0]):
            return self._scores(params, splits)

    def chosen_scores(self, several: Sequence[Tree], own: Samples, test: Samples) -> list[tuple[Tensor, ModelScores]]:
        """Of each of several stacks ``[1 or C, S, …]``: the model ``[C]`` with the least loss on each client's own samples, and
        its scores ``[C]`` on the test samples."""
        found = []
        for params in several:
            on_own, on_test = self.scores(params, [own, test])
            choice = best_model(on_own.loss)
            found.append((choice, ModelScores(*(t.gather(1, choice[:, None])[:, 0] for t in (on_test.loss, on_test.score)))))
        return found

    def weighed_scores(self, several: Sequence[Tree], own: Samples, test: Samples, temperature: float) -> list[MixtureScores]:
        """Of each of several stacks ``[1 or C, S, …]``: the scores on the test samples of each client's mixture, whose weights
        follow from the losses on its own samples."""
        found = []
        for params in several:
            losses = self.losses(params, own)
            choice, weights = best_model(losses), mixture_weights(losses, temperature)
            mixed, single = self.score_mixture(params, test, weights)
            of_mixture = ModelScores(mixed.loss[:, 0], mixed.score[:, 0])
            found.append(MixtureScores(choice, weights, of_mixture, single.score.gather(1, choice[:, None])[:, 0]))
        return found

    def score_mixture(self, params: Tree, samples: Samples, weights: Tensor) -> tuple[ModelScores, ModelScores]:
        """Scores ``[C, 1]`` of each client's mixture of outputs, e.g. Σ_s weights[i, s]·p_s(y|x), and ``[C, S]`` of its single
        models."""
        with self._evaluating(samples):
            return self._score_mixture(params, samples, weights.log())

    def outputs(self, params: Tree, samples: Samples, client: int, weights: Tensor) -> Tensor:
        """What a client's mixture of models ``params[1 or C, S, …]``, weighted [S], gives for its samples."""
        with self._evaluating(samples):
            return self._evaluation.outputs(params, samples, client, weights)

    def gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        """Gradient of each client's mean training loss at ``params[C, K, …]``, and that loss ``[C, K]``."""
        self._switch(False)
        with self._products(samples):
            return self._gradient(params, samples)

    def sample_losses(self, params: Tree, samples: Samples) -> Tensor:
        """The loss of each sample under ``params[1 or C, S, …]`` in evaluation mode, ``[C, S, longest]``; 0 beyond."""
        with self._evaluating(samples):
            return self._evaluation.sample_losses(params, samples)

    def features(self, params: Tree, samples: Samples, head: str) -> Tensor:
        """What enters the submodule ``head`` of ``params[C, 1, …]`` for each client's samples, ``[C, longest, …]``; 0 beyond."""
        with self._evaluating(samples):
            return self._evaluation.features(params, samples, head)

    def labels(self, samples: Samples) -> Tensor:
        """Each client's labels, ``[C, longest]``; −1 beyond."""
        of_clients = [samples.y[samples.rows(i)] for i in range(len(samples.count))]
        return pad_sequence(of_clients, batch_first=True, padding_value=-1)

    @abstractmethod
    def _gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]: ...

    @abstractmethod
    def _train(self, work: LocalEpochs, passes: Iterator[Pass]) -> tuple[Tree, Tensor]: ...

    @abstractmethod
    def _score(self, params: Tree, samples: Samples) -> ModelScores: ...

    # -- shared by all -------------------------------------------------------------------------------------------------------

    def _scores(self, params: Tree, splits: Sequence[Samples]) -> list[ModelScores]:
        if leaves(params)[0].shape[0] > 1:
            return [self._score(params, samples) for samples in splits]
        if self.mixes_samples:
            each = tree_map(lambda t: t.expand(len(splits[0].count), *t.shape[1:]), params)
            return [self._score(each, samples) for samples in splits]
        return [self._score_shared(params, samples) for samples in splits]

    def _score_shared(self, params: Tree, samples: Samples) -> ModelScores:
        """Of models ``params[1, S, …]`` that all clients share."""
        return self._evaluation.shared_scores(params, samples)

    def _score_mixture(self, params: Tree, samples: Samples, log_weights: Tensor) -> tuple[ModelScores, ModelScores]:
        return self._evaluation.mixture_scores(params, samples, log_weights)

    @property
    def _evaluation(self) -> Evaluation:
        return Evaluation(self.module, self.criterion, self.mixes_samples, self._laid_out)

    def _laid_out(self, x: Tensor) -> Tensor:
        """Inputs in the memory layout that is fastest."""
        return x

    @contextmanager
    def _evaluating(self, samples: Samples) -> Iterator[None]:
        self._switch(False)
        with torch.no_grad(), self._products(samples):
            yield

    def _switch(self, training: bool) -> None:
        """``module.train(training)``, which takes longer than many a layer's arithmetic, without its walk through the module."""
        if self.module.training == training:
            return
        if self._layers is None:
            self.module.train(training)
            return
        for layer in self._layers:
            layer.__dict__["training"] = training

    @cached_property
    def _layers(self) -> list[nn.Module] | None:
        """All there are, if to switch one means no more than to set a flag."""
        layers = list(self.module.modules())
        plain = all(
            type(m).train is nn.Module.train and type(m).eval is nn.Module.eval and "training" in m.__dict__ for m in layers
        )
        return layers if plain else None

    def _products(self, samples: Samples) -> AbstractContextManager[None]:
        return products(self.training.precision, samples.y.device)

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
        kept, nothing = 0, torch.empty(0)
        seen = {parameter.data_ptr() for parameter in self.module.parameters() if not parameter.requires_grad}
        held: list[Tensor] = []  # or their memory would be used again, and not be counted

        def pack(tensor: Tensor) -> Tensor:
            nonlocal kept
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                held.append(tensor.detach())
                kept += tensor.numel() * tensor.element_size()
            return nothing  # the graph holds what is returned: the tensor itself would hold the graph for ever

        rows = torch.arange(min(len(samples.y), self.training.batch_size), device=samples.y.device)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            self.criterion.total(self.module(samples.inputs(rows)), samples.y[rows])
        return -(-kept // len(rows))


def out_of_place(module: nn.Module) -> nn.Module:
    """The module itself, in which no activation writes over its input: the same numbers, but vmap and autograd need the input."""
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]  # a plain attribute of PyTorch's activations
    return module
