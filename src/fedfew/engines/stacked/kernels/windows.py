"""How the kernels for pooled convolutions of images with few channels are started."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import launch, scaling, triton_windows
from fedfew.engines.stacked.kernels.compiling import start

CHANNELS = 4  # those of an image are filled up to
BLOCK = 1024


def suit(shape: launch.Shape, pool: bool, precision: str) -> bool:
    """Are images to be filled up, and is the forward kernel the faster one? In fp32 each of its products is three."""
    return pool and precision != "fp32" and shape.channels <= CHANNELS and not (shape.pad_h or shape.pad_w)


def suit_gradient(dtype: torch.dtype) -> bool:
    """That of the weights, too? Of float32 the tensor cores take no factor that has to be turned."""
    return dtype.itemsize == 2


def filled_up(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[…, F] as […, CHANNELS]: a copy, unless it lies so in memory, as images do that were gathered for these kernels."""
    size = (*x.shape[:-1], CHANNELS)
    strides = torch.empty(size, device="meta").stride()
    fits = (x.storage_offset() + math.prod(size)) * x.itemsize <= x.untyped_storage().nbytes()
    if x.dtype == dtype and x.stride()[:-1] == strides[:-1] and fits:
        return x.as_strided(size, strides)  # what else lies there meets filters of zero
    out = x.new_empty(size, dtype=dtype)
    start(
        triton_windows.filled_up, (-(-out.numel() // BLOCK),),
        x.contiguous(), out, out.numel(), x.shape[-1], CHANNELS, BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def forward(
    x: Tensor, filters: Tensor, bias: Tensor | None, out: Tensor, source: Tensor, shape: launch.Shape, precision: str
) -> None:
    """As :func:`launch.forward`; x is filled up."""
    R, B, H, W, _ = x.shape
    OH, OW, N = out.shape[2:]
    height, width = shape.height + shape.stride, shape.width + shape.stride
    turned = x.new_empty(R, 4, N, height, width, CHANNELS)
    start(
        triton_windows.in_windows, (-(-turned.numel() // BLOCK),),
        filters.contiguous(), turned, turned.numel(),
        shape.channels, CHANNELS, N, shape.height, shape.width, shape.stride, BLOCK, num_warps=4,
    )  # fmt: skip
    tile = launch.tiles("windows_forward", shape.channels, N, shape.width, True, x.dtype.itemsize == 2)
    grid = (-(-B * OH * OW // tile["BM"]), -(-N // tile["BN"]), R)
    start(
        triton_windows.forward, grid,
        x, turned, turned if bias is None else bias.contiguous(), out, source,
        B, *launch.layout(out), H, W, OH, OW, CHANNELS, N, height, width, shape.stride,
        BIAS=bias is not None, TOGETHER=8 // x.itemsize, PRECISION=launch.INPUT_PRECISION[precision], **tile,
    )  # fmt: skip


def weight_gradient(x: Tensor, g: Tensor, source: Tensor, shape: launch.Shape, precision: str) -> tuple[Tensor, Tensor]:
    """As :func:`launch.weight_gradient_pooled`; x is filled up."""
    g = g.contiguous()
    scale, of_sums = scaling.of_incoming(g, precision)
    R, B, H, W, _ = x.shape
    OH, OW, N = g.shape[2:]
    height, width = shape.height + shape.stride, shape.width + shape.stride
    Q = height * width * CHANNELS
    tile = launch.tiles("windows_weight", shape.channels, N, shape.width, True)
    programs = -(-N // tile["BN"])
    most = max(16, 1 << (Q.bit_length() - 1))  # a tile is no smaller
    rest = max(16, 1 << (Q - most - 1).bit_length()) if most < Q else 0
    count, per_split = launch.splits(B * OH * OW, 256, programs * R, tile["BM"])
    parts, db = (torch.empty(count, R, *of, device=g.device) for of in ((4, N, Q), (N,)))
    start(
        triton_windows.weight_gradient, (programs, count, R),
        x, g, source, parts, db, B, per_split, H, W, OH, OW, CHANNELS, N, height, width, shape.stride,
        MOST=most, REST=rest, PRECISION="ieee", SCALE=scale, OF_SUMS=of_sums, **tile,
    )  # fmt: skip
    dw = torch.empty(R, N, shape.height, shape.width, shape.channels, device=g.device)
    start(
        triton_windows.from_windows, (-(-dw.numel() // 128),),
        parts, dw, count, dw.numel(),
        shape.channels, CHANNELS, N, shape.height, shape.width, shape.stride,
        OF_PRODUCTS=scaling.of_products(precision), AT_ONCE=4, BLOCK=128, num_warps=4,
    )  # fmt: skip
    return dw[None], db
