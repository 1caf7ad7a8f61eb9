"""The convolution of a stack as one operation that PyTorch can differentiate, vmap and record.

``convolution(x[R, B, C, H, W], weight[R, N, C, KH, KW], bias[R, N])`` is R convolutions side by side; with ``pool`` each is
followed by ReLU and a 2×2 maximum. In memory images are [R, B, H, W, C]. :func:`twin` says the same in plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfew.engines.stacked.kernels import launch, scaling, windows
from fedfew.engines.stacked.kernels.launch import Shape
from fedfew.engines.stacked.kernels.operation import operation
from fedfew.engines.stacked.kernels.replicas import of_all_replicas
from fedfew.engines.stacked.kernels.unpooling import unpool


def twin(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int], pool: bool) -> Tensor:
    """The same, one replica after the other, by PyTorch's own operations."""
    replicas = []
    for r in range(len(x)):
        y = F.conv2d(x[r], weight[r], None if bias is None else bias[r], stride, padding)
        replicas.append(F.max_pool2d(y.relu(), 2) if pool else y)
    return torch.stack(replicas)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    pool: bool = False,
    precision: str = "fp32",
    channels_first: bool = False,
    as_factor: bool = False,
    from_factor: bool = False,
) -> Tensor:
    """[R, B, N, …]; ``pool``: then ReLU and the maximum of every 2×2 pixels. precision: of the factors of products.
    channels_first: what comes out also lies so in memory, for a layer that flattens it. as_factor: it is stored as factors are,
    for another convolution. With "fp16" its gradient is then scaled, so nothing else may read it, and the other convolution must
    be told. from_factor: x comes from such a convolution."""
    settings = stride, *padding, pool, channels_first, as_factor, precision
    out: Tensor = _Convolution.apply(x, weight, bias, *settings, from_factor)[0]
    return out


def _shape(weight: Tensor, stride: int, pad_h: int, pad_w: int) -> Shape:
    return Shape(weight.shape[2], weight.shape[1], weight.shape[3], weight.shape[4], stride, pad_h, pad_w)


def _out(x: Tensor, shape: Shape, pool: bool, channels_first: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """New tensors for what comes out and, with ``pool``, for where it came from: [R, B, N, OH, OW]."""
    height, width = shape.out(*x.shape[3:])
    size = (*x.shape[:2], *((height // 2, width // 2) if pool else (height, width)), shape.filters)
    if channels_first:
        out = x.new_empty(*size[:2], size[4], *size[2:4], dtype=dtype)
    else:
        out = _channels_first(x.new_empty(size, dtype=dtype))
    return out, _channels_first(x.new_empty(size if pool else (0,) * 5, dtype=torch.int8))


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2)


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3)


@operation("convolution")
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    pad_h: int,
    pad_w: int,
    pool: bool,
    channels_first: bool,
    as_factor: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """What comes out, where it came from, and x as the kernels read it (empty where they read x itself)."""
    shape, dtype = _shape(weight, stride, pad_h, pad_w), launch.stored(precision)
    out, source = _out(x, shape, pool, channels_first, dtype if as_factor else torch.float32)
    tensors = _channels_last(weight), bias, _channels_last(out), _channels_last(source), shape
    image = _channels_last(x)
    if windows.suit(shape, pool, precision):
        seen = windows.filled_up(image, dtype)
        windows.forward(seen, *tensors, precision)
    else:
        seen = launch.factor(image, precision)
        launch.forward(seen, *tensors, pool, precision)
    return out, source, x.new_empty((0,) * 5) if seen.data_ptr() == image.data_ptr() else _channels_first(seen)


@operation("pooled_weight_gradient")
def _of_first_layer(
    g: Tensor, source: Tensor, x: Tensor, weight: Tensor, stride: int, pad_h: int, pad_w: int, precision: str
) -> tuple[Tensor, Tensor]:
    """Gradients of weights and bias from that of the pooled image. In a first layer the gradient before pooling is the largest
    of all and nothing else needs it: it is never written out."""
    shape, dtype = _shape(weight, stride, pad_h, pad_w), launch.stored(precision)
    g, source, x = (_channels_last(t) for t in (g, source, x))
    if windows.suit(shape, True, precision):
        x = windows.filled_up(x, dtype)
        if windows.suit_gradient(dtype):
            return windows.weight_gradient(x, g, source, shape, precision)
    return launch.weight_gradient_pooled(x, g, source, shape, precision)


@operation("convolution_gradient")
def _as_factors(
    g: Tensor,
    source: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    pad_h: int,
    pad_w: int,
    pool: bool,
    bias: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before pooling as both gradients below read it, the same with the samples last for that of the weights (empty
    where it reads the first), and the bias's gradient."""
    shape, dtype = _shape(weight, stride, pad_h, pad_w), launch.stored(precision)
    g, source, image = (_channels_last(t) for t in (g, source, x))
    with_last = not launch.by_pixel(shape, dtype)
    last, of_bias = weight.new_empty((0,) * 5), weight.new_empty(1, 0, 0)
    if pool:
        g, last, of_bias = unpool(g, source, *shape.out(*image.shape[2:4]), precision, with_last)
    else:
        g = scaling.factor(g, dtype, precision)
        if with_last:
            last, of_bias = launch.samples_last(g, precision)
        elif bias:
            of_bias = g.sum((1, 2, 3), dtype=torch.float32)[None] * scaling.of_products(precision)
    return _channels_first(g), last, of_bias if bias else weight.new_empty(1, 0, 0)


@operation("convolution_input_gradient")
def _of_input(
    g: Tensor, x: Tensor, weight: Tensor, stride: int, pad_h: int, pad_w: int, dtype: torch.dtype, precision: str
) -> Tensor:
    """Of this type; in float16, as g then is, ``scaling.SCALE`` times as large."""
    dx = x.new_empty(*x.shape[:2], *x.shape[3:], weight.shape[2], dtype=dtype)
    launch.input_gradient(_channels_last(g), _channels_last(weight), dx, _shape(weight, stride, pad_h, pad_w), precision)
    return _channels_first(dx)


@operation("convolution_weight_gradient", beside=True)
def _of_weight(g: Tensor, last: Tensor, x: Tensor, weight: Tensor, stride: int, pad_h: int, pad_w: int, precision: str) -> Tensor:
    shape, image = _shape(weight, stride, pad_h, pad_w), _channels_last(x)
    if last.numel():
        return launch.weight_gradient(image, last, shape, precision)
    return launch.weight_gradient_by_pixel(image, _channels_last(g), shape, precision)


def _backward(
    g: Tensor,
    source: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    pad_h: int,
    pad_w: int,
    pool: bool,
    inputs: torch.dtype | None,
    bias: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the inputs (of type ``inputs``; empty for None), weights and bias (empty unless ``bias``). The
    last two are in parts, to be summed over their first axis; the weights' is channels last. x is as the kernels read it. With
    "fp16" a gradient in float16, g or that of the inputs, is ``scaling.SCALE`` times as large."""
    settings, dx = (stride, pad_h, pad_w), x.new_empty((0,) * 5)
    if pool and inputs is None:
        dw, of_bias = _of_first_layer(g, source, x, weight, *settings, precision)
        return dx, dw, of_bias if bias else weight.new_empty(1, 0, 0)
    g, last, of_bias = _as_factors(g, source, x, weight, *settings, pool, bias, precision)
    dw = _of_weight(g, last, x, weight, *settings, precision)  # before the other: in a recording it runs beside what comes next
    if inputs is not None:
        dx = _of_input(g, x, weight, *settings, inputs, precision)
    return dx, dw, of_bias


class _Convolution(torch.autograd.Function):
    """What autograd and torch.func both differentiate, outside of vmap and within it."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
        out, source, seen = _forward(x, weight, bias, *settings[:-1])
        return out, source, seen

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, _, *ctx.settings, _, _, ctx.precision, from_factor = inputs
        _, source, seen = output
        ctx.mark_non_differentiable(source, seen)
        scaled = from_factor or scaling.scale(ctx.precision) == 1
        ctx.dtype, ctx.written = x.dtype, x.dtype if scaled else torch.float32  # of the gradient, in the end and by the kernel
        ctx.save_for_backward(seen if seen.numel() else x, weight, source)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, weight, source = ctx.saved_tensors
        of_x, _, of_bias, *_ = ctx.needs_input_grad
        wanted = ctx.written if of_x else None, of_bias
        dx, dw, db = _Gradients.apply(gradients[0], source, x, weight, *ctx.settings, *wanted, ctx.precision)
        return dx.to(ctx.dtype) if of_x else None, dw, db if of_bias else None, *[None] * 8

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_Convolution, 3, info.batch_size, in_dims, inputs)


class _Gradients(torch.autograd.Function):
    """A function of its own, because gradients that are taken within vmap are differentiable themselves."""

    @staticmethod
    def forward(g: Tensor, source: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
        dx, dw, db = _backward(g, source, x, weight, *settings)
        return dx, _channels_first(_summed(dw)), _summed(db)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        raise RuntimeError("the convolution kernels have first derivatives only")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_Gradients, 4, info.batch_size, in_dims, inputs)


def _summed(parts: Tensor) -> Tensor:
    """Outside of the operation that computes the parts: in a recorded step the sum may go straight into the parameter."""
    return parts.squeeze(0) if len(parts) == 1 else parts.sum(0)
