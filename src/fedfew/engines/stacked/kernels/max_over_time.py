"""The largest answer of each filter in a text as one operation for a stack, that PyTorch can differentiate, vmap and record.

``max_over_time(x[R, B, T, D], [weight[R, F, D, W], …])`` is [R, B, filters], without biases. All answers are computed, but only
the largest are written out; the gradients visit one window per filter and text. :func:`twin` says the same in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedfew.engines.stacked.kernels import launch, triton_max_over_time
from fedfew.engines.stacked.kernels.compiling import start
from fedfew.engines.stacked.kernels.operation import operation
from fedfew.engines.stacked.kernels.replicas import of_all_replicas


def twin(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The same, one replica after the other, by PyTorch's own operations."""
    return torch.stack([torch.cat([F.conv1d(x[r].mT, w[r]).amax(-1) for w in weights], 1) for r in range(len(x))])


def max_over_time(x: Tensor, weights: Sequence[Tensor], precision: str = "fp32") -> Tensor:
    """[R, B, N]. precision: of the factors of products."""
    widest = max(weight.shape[3] for weight in weights)
    if x.shape[2] < widest:  # as PyTorch's convolution; the kernels would find no window
        raise ValueError(f"a filter over {widest} words needs texts of at least as many, not of {x.shape[2]}")
    largest: Tensor = _MaxOverTime.apply(x, *weights, precision)[0]
    return largest


def tiles(part: str, halved: bool = False) -> dict[str, int]:
    """Block sizes, warps and stages: the best of those tried on an H200. halved: factors take 16 bits."""
    return {
        "forward": {"BM": 128, "BN": 64, "BK": 64 if halved else 32, "num_warps": 4, "num_stages": 3},
        "filters": {"BP": 256, "BD": 32, "num_warps": 8 if halved else 4},
        "words": {"EACH": 8, "BP": 4, "BD": 512, "num_warps": 1},
    }[part]


def _for_channels(tile: dict[str, int], channels: int) -> dict[str, int]:
    """The same blocks, but none much longer than there are channels."""
    return tile | {"BD": min(tile["BD"], max(16, 1 << (channels - 1).bit_length()))}


@operation("max_over_time")
def _forward(x: Tensor, weights: list[Tensor], precision: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The largest answers, where their windows begin, x as the kernels read it (empty where they read x itself), and the filters
    as they read them."""
    R, B, T, D = x.shape
    filters, widths = _sizes(weights)
    N, widest, seen = sum(filters), max(widths), launch.factor(x, precision)
    packed = seen.new_zeros(R, N, widest, D)
    for own, weight in zip(packed.split(filters, 1), weights, strict=True):
        own[:, :, : weight.shape[3]].copy_(weight.mT)
    tile = tiles("forward", seen.dtype.itemsize == 2)
    count, touched = -(-B * T // tile["BM"]), (tile["BM"] + T - 2) // T + 1
    value = torch.empty(R, count, touched, N, device=x.device)
    place = torch.empty(value.shape, dtype=torch.int32, device=x.device)
    start(
        triton_max_over_time.largest_of_tiles, (count * -(-N // tile["BN"]), R),
        seen, packed, value, place, B, T, D, N, widest, filters, widths,
        TOUCHED=touched, PRECISION=launch.INPUT_PRECISION[precision], **tile,
    )  # fmt: skip
    largest = torch.empty(R, B, N, device=x.device)
    index = torch.empty(R, B, N, dtype=torch.int32, device=x.device)
    start(
        triton_max_over_time.largest_of_texts, (B, -(-N // 128), R),
        value, place, largest, index, B, count, T, N, TOUCHED=touched, BM=tile["BM"], BLOCK=128, num_warps=4,
    )  # fmt: skip
    return largest, index, x.new_empty((0,) * 4) if seen.data_ptr() == x.data_ptr() else seen, packed


@operation("max_over_time_backward")
def _backward(
    g: Tensor, index: Tensor, x: Tensor, packed: Tensor, filters: list[int], widths: list[int], inputs: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of x (empty unless ``inputs``) and of the filters as they are packed, the latter in parts to be summed over their
    first axis. x and packed are as the kernels read them."""
    R, B, T, D = x.shape
    _, N, widest, _ = packed.shape
    g, met = g.contiguous(), _met(index, filters, widths, T)
    tile = _for_channels(tiles("filters", x.dtype.itemsize == 2), D)
    programs = -(-N * widest // tile["BP"]) * -(-D // tile["BD"])
    count, per_split = launch.splits(B, 8, programs * R, 1)
    dw = torch.empty(count, R, N, widest, D, device=g.device)
    start(
        triton_max_over_time.gradient_of_filters, (programs, count, R),
        x, g, met, dw, B, per_split, T, D, N, widest, **tile,
    )  # fmt: skip
    if not inputs:
        return g.new_empty((0,) * 4), dw
    ordered, parts = met.flatten(2).sort(dim=-1, stable=True)
    words = torch.arange(T + 1, device=g.device, dtype=met.dtype).expand(R, B, -1).contiguous()
    begins = torch.searchsorted(ordered, words, out_int32=True)
    dx, tile = torch.empty(R, B, T, D, device=g.device), _for_channels(tiles("words"), D)
    grid = (B, -(-T // tile["EACH"]) * -(-D // tile["BD"]), R)
    start(triton_max_over_time.gradient_of_words, grid, g, packed, parts, begins, dx, B, T, D, N, widest, **tile)
    return dx, dw


def _sizes(weights: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many filters there are of each width, and the widths."""
    return tuple(w.shape[-3] for w in weights), tuple(w.shape[-1] for w in weights)


def _met(index: Tensor, filters: Sequence[int], widths: Sequence[int], words: int) -> Tensor:
    """Which word each part of a filter met, [R, B, N, widest]; for parts that it does not have: the number of words."""
    dtype = torch.int16 if words + max(widths) < 2**15 else torch.int32  # what is sorted is read once for every few bits
    met = index.new_full((*index.shape, max(widths)), words, dtype=dtype)
    place = torch.arange(max(widths), device=index.device, dtype=dtype)
    for own, first, width in zip(met.split(list(filters), 2), index.split(list(filters), 2), widths, strict=True):
        own[..., :width] = first[..., None] + place[:width]
    return met


class _MaxOverTime(torch.autograd.Function):
    """What autograd and torch.func both differentiate, outside of vmap and within it."""

    @staticmethod
    def forward(x: Tensor, *weights_and_precision: Any) -> tuple[Tensor, ...]:
        *weights, precision = weights_and_precision
        found: tuple[Tensor, ...] = _forward(x, weights, precision)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, *weights, _ = inputs
        _, index, seen, packed = output
        ctx.mark_non_differentiable(index, seen, packed)
        ctx.sizes, ctx.dtype = _sizes(weights), x.dtype
        ctx.save_for_backward(index, seen if seen.numel() else x, packed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        dx, *dw = _Gradients.apply(gradients[0], *ctx.saved_tensors, *ctx.sizes, ctx.needs_input_grad[0])
        return dx.to(ctx.dtype) if ctx.needs_input_grad[0] else None, *dw, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_MaxOverTime, len(inputs) - 1, info.batch_size, in_dims, inputs)


class _Gradients(torch.autograd.Function):
    """A function of its own, because gradients that are taken within vmap are differentiable themselves."""

    @staticmethod
    def forward(g: Tensor, index: Tensor, x: Tensor, packed: Tensor, *about: Any) -> tuple[Tensor, ...]:
        filters, widths, inputs = about
        dx, dw = _backward(g, index, x, packed, list(filters), list(widths), inputs)
        dw = dw.squeeze(0) if len(dw) == 1 else dw.sum(0)  # where it is recorded
        return dx, *(own[:, :, :width].mT for own, width in zip(dw.split(filters, 1), widths, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        raise RuntimeError("the maximum over time has first derivatives only")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        return of_all_replicas(_Gradients, 4, info.batch_size, in_dims, inputs)
