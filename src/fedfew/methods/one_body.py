"""K heads on one body: the objective that trains them, and the K models that they are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.func import vmap

from fedfew.local import Loss, Through
from fedfew.stack import Tree, branch, leaves, tensor, tree_map


@dataclass(frozen=True)
class HeadsOnOneBody:
    """The objective of K heads on one body; a value, so that engines recognise it from round to round."""

    head: str | None

    def __call__(self, loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """Σ_k L_k: every head learns all it can from its own loss, the body from all of them by w. The body runs once, since
        only the heads are mapped over."""
        body, heads = branch(params, "body"), branch(params, "heads")
        head = self.head or next(iter(heads)).rpartition(".")[0]

        def loss_of(parameters: Tree, w: Tensor) -> Tensor:
            return loss(body | parameters, through=Through(head, lambda features: scale_gradient(features, w)))

        losses = vmap(loss_of, randomness="different")(heads, tensor(context, "w"))
        return losses.sum(), losses.detach()


def whole_models(parts: Tree) -> Tree:
    """A body ``[C, 1, …]`` and heads ``[C, K, …]`` as K models; nothing is copied."""
    heads = branch(parts, "heads")
    models = leaves(heads)[0].shape[1]
    return tree_map(lambda t: t.expand(t.shape[0], models, *t.shape[2:]), branch(parts, "body")) | heads


def scale_gradient(x: Tensor, scale: Tensor) -> Tensor:
    """x itself, but the gradient that flows back through it is multiplied."""
    fixed = x.detach()
    return fixed + scale * (x - fixed)
