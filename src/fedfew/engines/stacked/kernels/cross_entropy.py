"""The cross-entropy of a stack as one operation that PyTorch can differentiate, vmap and record.

:func:`fedfew.engines.loss.stacked_cross_entropy` says the same in plain PyTorch: some sixteen small kernels on a GPU, here one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap

from fedfew.engines.loss import stacked_cross_entropy
from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation
from fedfew.engines.stacked.kernels.replicas import of_all_replicas

AT_ONCE = 2**12  # logits that a program holds in registers
MOST = 2**16  # logits of a replica: more are too many for one program


def takes(logits: Tensor) -> bool:
    """Is the kernel for such logits of one replica, ``[B, N]``?"""
    if logits.ndim != 2 or logits.dtype != torch.float32 or not usable(logits.device):
        return False
    rows, classes = logits.shape
    return classes <= AT_ONCE // 4 and rows * _power(classes) <= MOST


def cross_entropy(
    logits: Tensor,
    y: Tensor,
    weight: Tensor,
    class_weights: Tensor | None = None,
    smoothing: float = 0.0,
    importance: Tensor | None = None,
    log_prior: Tensor | None = None,
) -> Tensor:
    """The loss of one replica, logits ``[B, N]``; with mixup y, weight and importance are ``[B, 2]``. The log prior ``[N]`` is
    added to the logits first."""
    stack = [None if t is None else t[None] for t in (logits, log_prior, y, weight, class_weights, importance)]
    loss: Tensor = _CrossEntropy.apply(*stack, smoothing)[0]
    return loss.squeeze(0)


def _plain(
    logits: Tensor,
    log_prior: Tensor | None,
    y: Tensor,
    weight: Tensor,
    class_weights: Tensor | None,
    importance: Tensor | None,
    smoothing: float,
) -> Tensor:
    """The losses of a stack by PyTorch's own operations."""
    logits = logits if log_prior is None else logits + log_prior[:, None]
    axes = (0, 0, 0, None if class_weights is None else 0, None, None if importance is None else 0)
    return vmap(stacked_cross_entropy, axes)(logits, y, weight, class_weights, smoothing, importance)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


@operation("cross_entropy")
def _forward(
    logits: Tensor,
    log_prior: Tensor | None,
    y: Tensor,
    weight: Tensor,
    class_weights: Tensor | None,
    importance: Tensor | None,
    smoothing: float,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss ``[R]`` and its gradient with respect to the logits ``[R, B, N]``, to which the bias ``[R, 1, N]`` is added."""
    from fedfew.engines.stacked.kernels import triton_cross_entropy

    R, B, N = logits.shape
    loss, gradient = _out(logits)
    BN = max(2, _power(N))
    optional = (log_prior, bias, class_weights, importance)
    prior, of_layer, classes, important = (loss if t is None else t.float().contiguous() for t in optional)
    start(
        triton_cross_entropy.cross_entropy, (R,),
        logits.contiguous(), prior, of_layer, y.contiguous(), weight.float().contiguous(), classes, important, loss, gradient, B,
        N, y.numel() // (R * B), smoothing, *(t is not None for t in optional), BB=min(_power(B), AT_ONCE // BN), BN=BN,
    )  # fmt: skip
    return loss, gradient


def _out(logits: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(len(logits)), logits.new_empty(logits.shape)


@torch.library.register_fake("fedfew::cross_entropy")
def _(logits, log_prior, y, weight, class_weights, importance, smoothing, bias=None):  # type: ignore[no-untyped-def]  # as above
    return _out(logits)


class _CrossEntropy(torch.autograd.Function):
    """What autograd and torch.func both differentiate, outside of vmap and within it."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        loss, gradient = _forward(*inputs)
        return loss, gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.smoothing = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], *tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (of_logits,) = _Gradient.apply(gradients[0], *ctx.saved_tensors, ctx.smoothing)
        return of_logits, *[None] * 6

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_CrossEntropy, 6, info.batch_size, in_dims, inputs)


class _Gradient(torch.autograd.Function):
    """A function of its own, because gradients that are taken within vmap are differentiable themselves."""

    @staticmethod
    def forward(g: Tensor, gradient: Tensor, *inputs: Any) -> tuple[Tensor]:
        return (gradient * g.reshape(-1, 1, 1),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor]) -> None:
        g, _, *tensors, ctx.smoothing = inputs
        ctx.save_for_backward(g, *tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Second derivatives, which few objectives take, by plain operations."""
        g, logits, *tensors = ctx.saved_tensors
        rest = (*tensors, ctx.smoothing)

        def first(g: Tensor, logits: Tensor) -> Tensor:
            return grad(lambda z: (_plain(z, *rest) * g).sum())(logits)

        of_g, of_logits = vjp(first, g, logits)[1](gradients[0])
        return of_g, None, of_logits, *[None] * 6

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_Gradient, 8, info.batch_size, in_dims, inputs)
