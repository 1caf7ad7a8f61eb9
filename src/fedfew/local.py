"""What a method sees of its clients: :class:`Local`, a stack of clients in one round, and the words for objectives.

Methods are written against this module; engines implement :class:`Trainer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedfew.axes import expanded
from fedfew.federation import Samples
from fedfew.stack import Tree, tree_map


class Loss(Protocol):
    """loss(weights): mean cross-entropy of one replica on the current batch, with the label smoothing, class weights, label prior
    and mixup that the settings ask for. It is ``loss.of(loss.logits(weights))``."""

    def __call__(self, weights: Tree, /, through: Through | None = None) -> Tensor: ...

    def logits(self, weights: Tree, /, through: Through | None = None) -> Tensor:
        """The logits of each sample, [B, classes], with the label prior."""

    def of(self, logits: Tensor, /) -> Tensor:
        """The training loss of these logits."""

    @property
    def labels(self) -> Tensor:
        """Of the samples, [B]; with mixup two each, [B, 2]."""

    @property
    def weight(self) -> Tensor:
        """What each label weighs in a mean over the batch, in the shape of the labels (cast it to the type of what is averaged).
        Weights sum to one. Samples that only fill a batch up weigh 0."""


@dataclass(frozen=True)
class Through:
    """Change what enters a submodule on the way through the model, e.g. the gradient that comes back from it."""

    submodule: str
    change: Callable[[Tensor], Tensor]


def with_features(loss: Loss, weights: Tree, head: str) -> tuple[Tensor, Tensor]:
    """The logits of a batch, and the features [B, …] that entered the submodule ``head`` on the way."""
    seen: list[Tensor] = []

    def keep(features: Tensor) -> Tensor:
        seen.append(features)
        return features

    logits = loss.logits(weights, Through(head, keep))
    return logits, seen[-1]


Objective = Callable[[Loss, Tree, Tree], tuple[Tensor, Tensor]]
"""objective(loss, params, context) → (what to minimise, the loss to report), written for one replica without leading axes.

params is what is trained, context what stays fixed; both are trees of any shape, e.g. FedProx
``(l := loss(params)) + mu / 2 * squared_distance(params, context), l``.
"""
Projection = Callable[[Tree], None]
"""project(params): bring what is trained back within its bounds, in place, entry by entry (it sees one replica or many)."""


def cross_entropy(loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
    """The plain objective: the mean loss itself."""
    value = loss(params)
    return value, value.detach()


def gradient_of(loss: Loss, parameters: Tree, buffers: Tree) -> tuple[Tree, Tensor]:
    """∇f and f on the current batch at these parameters, both fixed: for objectives that look around before they move. Buffers,
    which a module may write into, are an argument of their own."""
    at = tree_map(torch.detach, parameters)
    gradient, value = grad_and_value(lambda p, b: loss(p | b))(at, buffers)
    return tree_map(torch.detach, gradient), value.detach()


INFINITE = torch.tensor(torch.inf)  # a tensor: a recording's program takes no such number


def best_model(losses: Tensor) -> Tensor:
    """For each client of ``losses[C, K]`` the model with the least loss, [C]; one whose loss is NaN is never preferred."""
    return losses.where(~losses.isnan(), INFINITE.to(losses)).argmin(1)


def mixture_weights(losses: Tensor, temperature: float) -> Tensor:
    """v[i, k] ∝ exp(−L[i, k] / T). A loss that is not finite weighs nothing; where all of a client's are not, all weigh alike."""
    usable = losses.isfinite()
    logits = -losses.nan_to_num(0.0, 0.0, 0.0) / temperature
    return logits.where(usable | ~usable.any(-1, keepdim=True), -INFINITE.to(losses)).softmax(-1)


@dataclass(frozen=True)
class LocalEpochs:
    """Epochs of local training: of which replicas, on which samples, by which objective."""

    params: Tree  # [C, K, …]
    samples: Samples
    clients: Tensor  # identities [C], from which batch orders are drawn
    round: int
    objective: Objective = cross_entropy
    context: Tree = field(default_factory=dict)  # [C, K, …]
    epochs: int = 1
    first_epoch: int = 0  # its number in the round, where a round trains twice
    project: Projection | None = None  # applied after every step
    weights: Tensor | None = None  # what each sample's loss is multiplied by, [C, K, longest]; None: 1


class Trainer(Protocol):
    """The local work that a method may ask for; :class:`fedfew.engines.base.Engine` does it. Replicas are ``[C, K, …]``."""

    @property
    def local_epochs(self) -> int:
        """Passes over a client's data per round, unless the method asks for another number."""

    def lr(self, round: int) -> float:
        """The learning rate of a local step in this round."""

    def steps(self, count: Tensor, epochs: int) -> Tensor:
        """How far a constant gradient moves replicas that see ``count[C]`` samples so many times, in units of the learning
        rate: the number of their steps and, with momentum, what it adds."""

    @property
    def seed(self) -> int:
        """What the run's random numbers are drawn from (:mod:`fedfew.random_streams`)."""

    def train(self, work: LocalEpochs) -> tuple[Tree, Tensor]:
        """The trained replicas ``[C, K, …]``, and the loss reported by each [C, K]."""

    def trainable(self, path: str) -> bool: ...

    def losses(self, params: Tree, samples: Samples) -> Tensor: ...

    def gradient(self, params: Tree, samples: Samples) -> tuple[Tree, Tensor]: ...

    def sample_losses(self, params: Tree, samples: Samples) -> Tensor: ...

    def features(self, params: Tree, samples: Samples, head: str) -> Tensor: ...

    def labels(self, samples: Samples) -> Tensor: ...


@dataclass(frozen=True)
class Local:
    """A stack of clients in one round: what a method may do with data that it never sees."""

    engine: Trainer
    samples: Samples
    clients: Tensor  # identities [C]
    round: int
    share: Tensor  # [C]: n_i / Σ_j n_j over the clients of this round

    def __len__(self) -> int:
        return len(self.clients)

    def of(self, at: Tensor, round: int) -> Local:
        """The clients at these positions of the stack, with the batches and the learning rate of another round."""
        return Local(self.engine, self.samples.take(at), self.clients[at], round, self.share[at.to(self.share.device)])

    @property
    def counts(self) -> Tensor:
        """n_i, the number of training samples of each client."""
        return self.samples.count

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        return self.engine.lr(self.round)

    @property
    def steps(self) -> Tensor:
        """[C], float64: trained − received = −lr·steps·g where every step of the round sees the same gradient g. The number of
        local steps; with momentum ρ more, ‖a_i‖₁ of FedNova (Wang et al. 2020). Of Adam it is the number of steps alone."""
        return self.engine.steps(self.counts, self.engine.local_epochs)

    def split(self, model: Tree) -> tuple[Tree, Tree]:
        """A model's parameters, which are trained, and its buffers."""
        trained = {name for name in model if self.engine.trainable(name)}
        return {n: t for n, t in model.items() if n in trained}, {n: t for n, t in model.items() if n not in trained}

    def train(
        self,
        params: Tree,
        objective: Objective = cross_entropy,
        context: Tree | None = None,
        *,
        epochs: int | None = None,
        first_epoch: int = 0,
        project: Projection | None = None,
        weights: Tensor | None = None,
    ) -> tuple[Tree, Tensor]:
        """Train replicas ``[1 or C, K, …]`` on the clients' samples: the trained stack [C, K, …] and the loss reported [C, K].

        epochs: the run's ``local_epochs`` unless given; first_epoch: number of the first one, where a round trains twice;
        project: applied after every step (projected SGD); weights: what each sample's loss is multiplied by, ``[C, K, longest]``
        in the order of :meth:`sample_losses`, 1 for all unless given.
        """
        epochs = self.engine.local_epochs if epochs is None else epochs
        stack, fixed = self._spread(params), self._spread(context or {})
        work = LocalEpochs(stack, self.samples, self.clients, self.round, objective, fixed, epochs, first_epoch, project, weights)
        return self.engine.train(work)

    def losses(self, params: Tree) -> Tensor:
        """Mean training loss [C, K] of models ``[1 or C, K, …]`` as they are, in evaluation mode."""
        return self.engine.losses(params, self.samples)

    def unseen_losses(self, params: Tree) -> Tensor | None:
        """The same on samples that are never trained on, NaN for a client that has none; None where no client keeps any apart."""
        unseen = self.samples.not_seen
        return None if unseen is None else self.engine.losses(params, unseen)

    def gradient(self, params: Tree) -> tuple[Tree, Tensor]:
        """Gradient [C, K, …] of the mean training loss at ``[1 or C, K, …]``, and that loss [C, K]."""
        return self.engine.gradient(self._spread(params), self.samples)

    def sample_losses(self, params: Tree) -> Tensor:
        """The loss of every training sample under models ``[1 or C, K, …]`` as they are, in evaluation mode: ``[C, K, longest]``,
        0 beyond a client's own samples."""
        return self.engine.sample_losses(params, self.samples)

    def sample_mean(self, values: Tensor) -> Tensor:
        """The mean over each client's samples, ``[C, …]``, of values ``[C, …, longest]``."""
        counts = self.counts.reshape(-1, *[1] * (values.ndim - 1))
        own = torch.arange(values.shape[-1], device=values.device) < counts
        return (values * own).sum(-1) / counts[..., 0]

    def features(self, params: Tree, head: str) -> Tensor:
        """What enters the submodule ``head`` of models ``[1 or C, 1, …]`` for every training sample, in evaluation mode:
        ``[C, longest, …]``, 0 beyond a client's own samples. For use at the client: only statistics of it may be sent."""
        return self.engine.features(self._spread(params), self.samples, head)

    @property
    def labels(self) -> Tensor:
        """The training labels in the order of :meth:`features`, ``[C, longest]``, −1 beyond a client's own samples."""
        return self.engine.labels(self.samples)

    def class_counts(self, classes: int) -> Tensor:
        """n_i,c: how many training samples of each class the clients have, ``[C, classes]``."""
        return torch.stack([(self.labels == c).sum(1) for c in range(classes)], 1)

    def _spread(self, tree: Tree) -> Tree:
        return expanded(tree, len(self))
