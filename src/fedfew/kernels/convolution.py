"""The convolution of a stack as one operation that PyTorch can differentiate, vmap and record.

``convolution(x[R, B, C, H, W], weight[R, N, C, KH, KW], bias[R, N])`` is R convolutions side by side; with ``pool`` each is
followed by ReLU and a 2×2 maximum. :func:`twin` says the same in plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfew.kernels import triton_convolution

INPUT_PRECISION = {
    "fp32": "tf32x3",
    "tf32": "tf32",
    "bf16": "bf16",
}  # of the factors; tf32x3: three products, float32 but for rounding


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
) -> Tensor:
    """[R, B, N, …]; ``pool``: then ReLU and the maximum of every 2×2 pixels. precision: of the factors of products."""
    out: Tensor = _forward(x, weight, bias, stride, *padding, pool, precision)[0]
    return out


def _sizes(x: Tensor, weight: Tensor, stride: int, pad_h: int, pad_w: int, pool: bool) -> tuple[int, int]:
    """Height and width of what comes out."""
    height = (x.shape[3] + 2 * pad_h - weight.shape[3]) // stride + 1
    width = (x.shape[4] + 2 * pad_w - weight.shape[4]) // stride + 1
    return (height // 2, width // 2) if pool else (height, width)


def _empty(x: Tensor, *channels_last: int, dtype: torch.dtype | None = None) -> Tensor:
    """A new tensor [R, B, C, H, W], in memory [R, B, H, W, C]."""
    return x.new_empty(channels_last, dtype=dtype).permute(0, 1, 4, 2, 3)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 1, 3, 4, 2).contiguous()


@torch.library.custom_op("fedfew::convolution", mutates_args=())
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, pad_h: int, pad_w: int, pool: bool, precision: str
) -> tuple[Tensor, Tensor]:
    R, B, C, H, W = x.shape
    N, KH, KW = weight.shape[1], weight.shape[3], weight.shape[4]
    OH, OW = _sizes(x, weight, stride, pad_h, pad_w, pool)
    out = _empty(x, R, B, OH, OW, N)
    source = _empty(x, *((R, B, OH, OW, N) if pool else (0,) * 5), dtype=torch.int8)
    tile = _tiles(part="forward", channels=C, filters=N, width=KW, pool=pool)
    grid = (-(-B * OH * OW // tile["BM"]), -(-N // tile["BN"]), R)
    triton_convolution.forward[grid](
        _channels_last(x), _channels_last(weight), weight if bias is None else bias.contiguous(), out, source,
        B, H, W, OH, OW, C, N, KH, KW, stride, pad_h, pad_w,
        POOL=pool, BIAS=bias is not None, PRECISION=INPUT_PRECISION[precision], **tile,
    )  # fmt: skip
    return out, source


@_forward.register_fake
def _(x, weight, bias, stride, pad_h, pad_w, pool, precision):  # type: ignore[no-untyped-def]  # as above
    sizes = (*x.shape[:2], *_sizes(x, weight, stride, pad_h, pad_w, pool), weight.shape[1])
    return _empty(x, *sizes), _empty(x, *(sizes if pool else (0,) * 5), dtype=torch.int8)


@torch.library.custom_op("fedfew::convolution_backward", mutates_args=())
def _backward(
    g: Tensor,
    source: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: int,
    pad_h: int,
    pad_w: int,
    pool: bool,
    inputs: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the inputs (an empty one unless ``inputs``), the weights and the bias."""
    shape = (weight.shape[2], weight.shape[1], weight.shape[3], weight.shape[4], stride, pad_h, pad_w)
    x_last, g_last, source = _channels_last(x), _channels_last(g), source.permute(0, 1, 3, 4, 2)
    if pool and not inputs:  # the first layer: its gradient before pooling is the largest of all and is never written out
        dw, db = _weight_gradient(x_last, g_last, source, shape, precision)
        return _empty(x, *(0,) * 5), dw, db
    height, width = _sizes(x, weight, stride, pad_h, pad_w, False)
    dw = _weight_gradient_by_sample(x_last, g_last, source if pool else None, height, width, shape, precision)
    if pool:
        g_last = _unpool(g_last, source, height, width)
    dx = _input_gradient(x_last, g_last, weight, shape, precision) if inputs else _empty(x, *(0,) * 5)
    return dx, dw, g_last.sum((1, 2, 3))


def _unpool(g: Tensor, source: Tensor, height: int, width: int) -> Tensor:
    R, B, OH, OW, N = g.shape
    out = g.new_zeros(R, B, height, width, N) if height % 2 or width % 2 else g.new_empty(R, B, height, width, N)
    block = 1024
    triton_convolution.unpool[(-(-g.numel() // block),)](g, source, out, OH, OW, height, width, g.numel(), N, block, num_warps=4)
    return out


def _weight_gradient(
    x: Tensor, g: Tensor, source: Tensor | None, shape: tuple[int, ...], precision: str
) -> tuple[Tensor, Tensor]:
    R, B, H, W, C = x.shape
    OH, OW, N = g.shape[2:]
    KH, KW = shape[2:4]
    tile = _tiles(part="weight", channels=C, filters=N, width=KW, pool=source is not None)
    tiles = -(-KH * KW * C // tile["BQ"]) * -(-N // tile["BN"])
    splits, per_split = _splits(B * OH * OW, 256, tiles * R, tile["BM"])
    dw, db = x.new_empty(splits, R, KH * KW * C, N), x.new_empty(splits, R, N)
    triton_convolution.weight_gradient[(tiles, splits, R)](
        x, g, g if source is None else source, dw, db, B, H, W, OH, OW, per_split, *shape,
        POOL=source is not None, PRECISION=INPUT_PRECISION[precision], **tile,
    )  # fmt: skip
    return dw.sum(0).view(R, KH, KW, C, N).permute(0, 4, 3, 1, 2).contiguous(), db.sum(0)


def _weight_gradient_by_sample(
    x: Tensor, g: Tensor, source: Tensor | None, height: int, width: int, shape: tuple[int, ...], precision: str
) -> Tensor:
    C, N, KH, KW, _, pad_h, pad_w = shape
    R, _, H, W, _ = x.shape
    tile = _tiles(part="weight_by_sample", channels=C, filters=N, width=KW, pool=False)
    tiles = -(-KH * KW * C // tile["BQ"]) * -(-N // tile["BN"])
    splits, per_split = _splits(height, 1, tiles * R, 1)
    dw = x.new_empty(splits, R, N, C, KH, KW)
    x = _samples_last(x, None, H, W, pad_h, pad_w)
    triton_convolution.weight_gradient_by_sample[(tiles, splits, R)](
        x, _samples_last(g, source, height, width, 0, 0), dw, H + 2 * pad_h, W + 2 * pad_w, height, per_split,
        x.shape[-1], width, *shape[:5], PRECISION=INPUT_PRECISION[precision], **tile,
    )  # fmt: skip
    return dw[0] if splits == 1 else dw.sum(0)


def _samples_last(x: Tensor, source: Tensor | None, height: int, width: int, pad_h: int, pad_w: int) -> Tensor:
    """[R, B, H, W, C] as [R, C, H + 2 pad_h, W + 2 pad_w, S], S the next multiple of four (of 16 bytes), filled up with zeros."""
    R, B, PH, PW, C = x.shape
    S = -(-B // 4) * 4
    out = x.new_empty(R, C, height + 2 * pad_h, width + 2 * pad_w, S)
    block = 32
    grid = (out.shape[2] * out.shape[3], -(-C // block), R)
    triton_convolution.samples_last[grid](
        x,
        x if source is None else source,
        out,
        B,
        height,
        width,
        PH,
        PW,
        C,
        S,
        pad_h,
        pad_w,
        source is not None,
        64,
        block,
        num_warps=4,
    )
    return out


def _input_gradient(x: Tensor, g: Tensor, weight: Tensor, shape: tuple[int, ...], precision: str) -> Tensor:
    R, B, H, W, C = x.shape
    OH, OW, N = g.shape[2:]
    stride = shape[4]
    dx = _empty(x, R, B, H, W, C)
    tile = _tiles(part="input", channels=C, filters=N, width=shape[3], pool=False)
    grid = (-(-(-(-W // stride) * B) // tile["BM"]), -(-C // tile["BN"]) * H * stride, R)
    triton_convolution.input_gradient[grid](
        g, weight.permute(0, 3, 4, 2, 1).contiguous(), dx, B, H, W, OH, OW, *shape, PRECISION=INPUT_PRECISION[precision], **tile
    )
    return dx


def _splits(length: int, least: int, programs: int, multiple: int) -> tuple[int, int]:
    """Into how many parts a sum over ``length`` falls so that the GPU is full, and the length of each."""
    splits = max(1, min(length // least, PROGRAMS // programs))
    per_split = -(-length // (splits * multiple)) * multiple
    return -(-length // per_split), per_split


@_backward.register_fake
def _(g, source, x, weight, stride, pad_h, pad_w, pool, inputs, precision):  # type: ignore[no-untyped-def]  # as above
    R, B, C, H, W = x.shape
    N, KH, KW = weight.shape[1], weight.shape[3], weight.shape[4]
    dx = _empty(x, *((R, B, H, W, C) if inputs else (0,) * 5))
    return dx, x.new_empty(R, N, C, KH, KW), x.new_empty(R, N)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, bias, *ctx.settings, ctx.precision = inputs
    ctx.bias = bias is not None
    ctx.save_for_backward(x, weight, output[1])


def _differentiate(ctx: Any, g: Tensor, _: Tensor) -> tuple[Any, ...]:
    x, weight, source = ctx.saved_tensors
    dx, dw, db = _backward(g, source, x, weight, *ctx.settings, ctx.needs_input_grad[0], ctx.precision)
    return dx if ctx.needs_input_grad[0] else None, dw, db if ctx.bias else None, *[None] * 5


_forward.register_autograd(_differentiate, setup_context=_keep)


@_forward.register_vmap
def _(info, in_dims, x, weight, bias, *settings):  # type: ignore[no-untyped-def]  # torch calls it
    """Another axis of replicas joins the first one."""

    def merged(tensor: Tensor | None, axis: int | None) -> Tensor | None:
        if tensor is None:
            return None
        spread = tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        return spread.flatten(0, 1)

    out, source = _forward(*(merged(t, axis) for t, axis in zip((x, weight, bias), in_dims, strict=False)), *settings)
    shape = (info.batch_size, -1)
    return (out.unflatten(0, shape), source.unflatten(0, shape) if len(source) else source), (0, 0 if len(source) else None)


PROGRAMS = 132 * 4  # enough to fill a large GPU


def _tiles(part: str, channels: int, filters: int, width: int, pool: bool) -> dict[str, int]:
    """Block sizes, warps and stages: the best of those tried on an H200 (benchmarks/kernels.py)."""
    BN = 32 if (channels if part == "input" else filters) <= 32 else 64
    if part == "forward":
        if width * channels <= 16:
            return {"BM": 64, "BN": BN, "BK": 16, "num_warps": 4, "num_stages": 1}
        return {"BM": 128, "BN": BN, "BK": 32, "num_warps": 8 if pool else 4, "num_stages": 3}
    if part == "weight":
        return {"BM": 64, "BN": BN, "BQ": 128 if BN == 32 else 64, "num_warps": 4, "num_stages": 1}
    if part == "weight_by_sample":
        return {"BT": 32, "BN": BN, "BQ": 128, "num_warps": 4, "num_stages": 2}
    return {"BM": 128, "BN": BN, "BK": 32, "num_warps": 4, "num_stages": 3}
