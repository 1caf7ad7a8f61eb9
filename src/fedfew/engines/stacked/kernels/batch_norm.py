"""BatchNorm of a stack in training as one operation that PyTorch can differentiate, vmap and record.

:mod:`fedfew.engines.stacked.normalising` says the same in plain PyTorch: on a GPU many passes over the batch. Here they are two,
and two for the gradients. In memory what is normalised is [R, B, …, C], and so are the result and its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from fedfew.engines.stacked.kernels import usable
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation
from fedfew.engines.stacked.kernels.replicas import of_all_replicas
from fedfew.engines.stacked.normalising import normalised, statistics

AT_ONCE = 2**12  # numbers that a program holds in registers
MOST_SPLITS = 64  # of a replica's rows, all of which each program of the second pass adds up
PROGRAMS = 132 * 8  # enough to fill a large GPU


def takes(x: Tensor, *others: Tensor | None) -> bool:
    """Is the kernel for one replica's ``x[B, C, …]``, with these parameters and running statistics?"""
    in_float32 = all(t is None or t.dtype == torch.float32 for t in (x, *others))
    return in_float32 and x.ndim >= 2 and 0 < x.numel() < 2**31 and usable(x.device)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: Tensor | None,
    running: tuple[Tensor, Tensor] | None,
    share: float | Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """One replica's ``x[B, C, …]`` normalised, and ``[2, C]`` its running mean and variance after this batch, which moves them by
    the share (empty without any). samples ``[B]``: what each weighs, 0 for those that do not count; None: all count."""
    given = (x, weight, bias, samples, *(running or (None, None)), share if isinstance(share, Tensor) else None)
    stack = [None if t is None else t[None] for t in given]
    out, _, moved = _BatchNorm.apply(*stack, 0.0 if isinstance(share, Tensor) else float(share), eps)
    return out.squeeze(0), moved.squeeze(0)


def _plain(x: Tensor, weight: Tensor, samples: Tensor | None, eps: float) -> Tensor:
    """The stack ``x[R, B, C, …]`` normalised, without a bias, by PyTorch's own operations."""

    def of_replica(x: Tensor, weight: Tensor, samples: Tensor | None) -> Tensor:
        keep = x.new_ones(len(x)) if samples is None else (samples > 0).to(x.dtype)
        mean, variance, _ = statistics(x, keep)
        return normalised(x, mean, variance, weight, None, eps)

    return vmap(of_replica, (0, 0, None if samples is None else 0))(x, weight, samples)


def _channels_last(x: Tensor) -> Tensor:
    """[R, B, …, C], as the kernels read it."""
    return x.movedim(2, -1).contiguous()


def _tiles(x: Tensor) -> tuple[tuple[int, int, int], int, dict[str, int]]:
    """How the kernels are started for x [R, B, …, C]: how many programs, rows of each, and what is constant."""
    R, B, C = *x.shape[:2], x.shape[-1]
    rows = x.numel() // (R * C)
    BC = min(64, 1 << (C - 1).bit_length())
    BM = min(256, AT_ONCE // BC)
    channels = -(-C // BC)
    splits = max(1, min(MOST_SPLITS, rows // BM, PROGRAMS // (R * channels)))
    per_split = -(-rows // (splits * BM)) * BM
    return (-(-rows // per_split), channels, R), per_split, {"P": rows // B, "C": C, "BM": BM, "BC": BC, "num_warps": 4}


@operation("batch_norm")
def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    shares: Tensor | None,
    share: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """x [R, B, C, …] normalised; mean, 1 / deviation and number of values, [R, 3, C]; running statistics, moved, [R, 2, C]."""
    from fedfew.engines.stacked.kernels import triton_batch_norm

    image = _channels_last(x)
    grid, per_split, constants = _tiles(image)
    (R, B, C), splits = x.shape[:3], grid[0]
    out, parts, found = torch.empty_like(image), x.new_empty(R, 3, splits, C), x.new_empty(R, 3, C)
    moved = x.new_empty((0, 2, C) if running_mean is None else (R, 2, C))
    weighs = image if samples is None else samples.contiguous()
    start(triton_batch_norm.measure, grid, image, weighs, parts, B, per_split, WEIGHTED=samples is not None, **constants)
    optional = weight, bias, running_mean, running_var, shares
    scale, shift, mean, variance, of_replicas = (found if t is None else t.contiguous() for t in optional)
    start(
        triton_batch_norm.normalise, grid,
        image, parts, scale, shift, mean, variance, of_replicas, out, found, moved, B, per_split, splits, share, eps,
        SCALE=weight is not None, BIAS=bias is not None, RUNNING=running_mean is not None, SHARES=shares is not None,
        MOST=MOST_SPLITS, **constants,
    )  # fmt: skip
    return out.movedim(-1, 2), found, moved


@operation("batch_norm_backward")
def _backward(
    g: Tensor, x: Tensor, weight: Tensor | None, samples: Tensor | None, found: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to x, weights and bias."""
    from fedfew.engines.stacked.kernels import triton_batch_norm

    g, image = _channels_last(g), _channels_last(x)
    grid, per_split, constants = _tiles(image)
    (R, B, C), splits = x.shape[:3], grid[0]
    of_x, of_weight, of_bias = torch.empty_like(image), x.new_empty(R, C), x.new_empty(R, C)
    parts, found = x.new_empty(R, 2, splits, C), found.contiguous()
    start(triton_batch_norm.measure_gradient, grid, g, image, found, parts, B, per_split, **constants)
    weighs, scale = (found if t is None else t.contiguous() for t in (samples, weight))
    start(
        triton_batch_norm.gradient, grid,
        g, image, weighs, scale, found, parts, of_x, of_weight, of_bias, B, per_split, splits,
        WEIGHTED=samples is not None, SCALE=weight is not None, MOST=MOST_SPLITS, **constants,
    )  # fmt: skip
    return of_x.movedim(-1, 2), of_weight, of_bias


class _BatchNorm(torch.autograd.Function):
    """What autograd and torch.func both differentiate, outside of vmap and within it."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        out, found, moved = _forward(*inputs)
        return out, found, moved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, _, samples, *_, ctx.eps = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, weight, samples, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        of_x, of_weight, of_bias = _Gradients.apply(gradients[0], *ctx.saved_tensors, ctx.eps)
        wanted = [g if needed else None for g, needed in zip((of_x, of_weight, of_bias), ctx.needs_input_grad, strict=False)]
        return *wanted, *[None] * 6

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_BatchNorm, 7, info.batch_size, in_dims, inputs)


class _Gradients(torch.autograd.Function):
    """A function of its own, because gradients that are taken within vmap are differentiable themselves."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        of_x, of_weight, of_bias = _backward(*inputs[:-1])
        return of_x, of_weight, of_bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, _, ctx.eps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Second derivatives, which few objectives take, by plain operations."""
        g, x, weight, samples = ctx.saved_tensors
        scale = x.new_ones(len(x), x.shape[2]) if weight is None else weight

        def first(g: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            back = vjp(lambda x, scale: _plain(x, scale, samples, ctx.eps), x, scale)[1]
            return *back(g), g.movedim(2, 1).flatten(2).sum(-1)

        of_g, of_x, of_scale = vjp(first, g, x, scale)[1](gradients)
        return of_g, of_x, None if weight is None else of_scale, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_Gradients, 5, info.batch_size, in_dims, inputs)
