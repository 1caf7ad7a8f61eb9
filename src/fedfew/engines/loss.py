"""The training loss of one replica, with what the client's own data add to it where it is cross-entropy.

A client may add its log label prior to the logits, and weigh classes. Both are constants of the client, so they travel with the
context of an objective, which every engine hands to the replicas anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedfew.federation import Samples
from fedfew.local import Through
from fedfew.stack import Tree, branch, tensor
from fedfew.tasks import Criterion

CONTEXT, LOG_PRIOR, CLASS_WEIGHTS = "__context__", "__log_prior__", "__class_weights__"  # of a context that carries them


@dataclass(frozen=True)
class ClientTerms:
    """What a client puts into the loss of its replicas, [classes] each."""

    log_prior: Tensor | None = None
    class_weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class BatchLoss:
    """A :class:`fedfew.local.Loss` on one batch of one replica."""

    forward: Callable[[Tree, Through | None], Tensor]  # weights → outputs
    shifted_loss: Callable[[Tensor, Tensor | None], Tensor]  # outputs, a log prior to be added → loss
    labels: Tensor
    weight: Tensor
    log_prior: Tensor | None = None

    def logits(self, weights: Tree, /, through: Through | None = None) -> Tensor:
        return shifted(self.forward(weights, through), self.log_prior)

    def of(self, logits: Tensor, /) -> Tensor:
        return self.shifted_loss(logits, None)

    def __call__(self, weights: Tree, /, through: Through | None = None) -> Tensor:
        return self.shifted_loss(self.forward(weights, through), self.log_prior)


def with_client_terms(context: Tree, samples: Samples, models: int) -> Tree:
    """A context ``[C, K, …]`` that carries the clients' terms, where they have some."""
    terms = {LOG_PRIOR: samples.log_prior, CLASS_WEIGHTS: samples.class_weights}
    carried: Tree = {name: t[:, None].expand(-1, models, -1) for name, t in terms.items() if t is not None}
    return carried | {CONTEXT: context} if carried else context


def client_terms(context: Tree) -> tuple[Tree, ClientTerms]:
    """The method's own context of one replica, and its client's terms."""
    prior, weights = (tensor(context, name) if name in context else None for name in (LOG_PRIOR, CLASS_WEIGHTS))
    if prior is None and weights is None:
        return context, ClientTerms()
    return branch(context, CONTEXT), ClientTerms(prior, weights)


def shifted(logits: Tensor, log_prior: Tensor | None) -> Tensor:
    return logits if log_prior is None else logits + log_prior


def stacked_loss(
    criterion: Criterion,
    outputs: Tensor,
    y: Tensor,
    weight: Tensor,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    importance: Tensor | None = None,
) -> Tensor:
    """The mean loss of samples ``[B]`` that weigh unequally, each multiplied by its importance; with mixup weight and importance
    are ``[B, 2]`` and y ``[B, 2, …]``."""
    if criterion.is_cross_entropy:
        return stacked_cross_entropy(outputs, y, weight, class_weights, smoothing, importance)
    weight = weight if importance is None else weight * importance
    if weight.ndim == 1:
        return (criterion.losses(outputs, y) * weight).sum()
    both = [(criterion.losses(outputs, y[:, of]) * weight[:, of]).sum() for of in range(weight.shape[1])]
    return both[0] + both[1]


def stacked_cross_entropy(
    logits: Tensor,
    y: Tensor,
    weight: Tensor,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    importance: Tensor | None = None,
) -> Tensor:
    """``F.cross_entropy(logits, y, class_weights, label_smoothing=smoothing)`` of samples ``[B]`` that weigh unequally.

    importance: what each sample's loss is multiplied by; the sum of the weights that it is divided by stays the same. With mixup
    y, weight and importance are ``[B, 2]``: two labels per sample. Plain operations (log Σ exp(logits) − logits[y]) are faster
    than log_softmax over so few classes.
    """
    labels, weighs = (t if t.ndim == 2 else t[:, None] for t in (y, weight))
    below = logits - logits.amax(-1, keepdim=True).detach()
    of_labels = below.gather(-1, labels)
    total = below.exp().sum(-1, keepdim=True).log()
    losses = total - of_labels
    counts = weighs if importance is None else weighs * importance.reshape(weighs.shape)
    if class_weights is not None:
        class_weights = class_weights.to(logits.dtype)
        class_of_labels = class_weights.expand_as(logits).gather(-1, labels)
        scale = (weighs * class_of_labels).sum()
        value = (losses * counts * class_of_labels).sum() / scale
    else:
        value = (losses * counts).sum()
    if smoothing:
        spread = total - below
        if class_weights is not None:
            spread = spread * (class_weights / scale)
        even = (spread.sum(-1) * counts.sum(-1)).sum() / logits.shape[-1]
        value = (1 - smoothing) * value + smoothing * even
    return value
