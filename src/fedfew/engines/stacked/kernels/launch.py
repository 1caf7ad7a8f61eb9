"""How the convolution kernels are started: layouts, block sizes, how many programs.

Images here are [R, B, H, W, C] and filters [R, N, KH, KW, C], contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import scaling, triton_convolution
from fedfew.engines.stacked.kernels.compiling import start

INPUT_PRECISION = {"fp32": "tf32x3", "tf32": "tf32", "bf16": "ieee", "fp16": "ieee"}
"""Of factors in float32, of no effect on others. tf32x3: in three products, float32 but for rounding."""
STORED = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""As what factors are written to memory before kernels read them, if not as they are: half the bytes."""
PROGRAMS = 132 * 4  # enough to fill a large GPU
ALIGNED = 16  # bytes that a GPU reads at once


@dataclass(frozen=True)
class Shape:
    """What a convolution is made for."""

    channels: int
    filters: int
    height: int  # of a filter
    width: int
    stride: int
    pad_h: int
    pad_w: int

    def constants(self) -> tuple[int, ...]:
        return (self.channels, self.filters, self.height, self.width, self.stride, self.pad_h, self.pad_w)

    @property
    def size(self) -> int:
        """Of a filter, in numbers."""
        return self.height * self.width * self.channels

    def out(self, height: int, width: int) -> tuple[int, int]:
        """The size of what comes out for an image of this size."""
        return (
            (height + 2 * self.pad_h - self.height) // self.stride + 1,
            (width + 2 * self.pad_w - self.width) // self.stride + 1,
        )


def tiles(part: str, channels: int, filters: int, width: int, pool: bool, halved: bool = False) -> dict[str, int]:
    """Block sizes, warps and stages: the best of those tried on an H200 (benchmarks/kernels.py). halved: factors take 16 bits."""
    BN = 32 if (channels if part == "input" else filters) <= 32 else 64
    if part == "forward":
        if width * channels <= 32:
            return {"BM": 64, "BN": BN, "BK": 16 if width * channels <= 16 else 32, "num_warps": 4, "num_stages": 1}
        if halved and pool:
            return {"BM": 64, "BN": BN, "BK": 32, "num_warps": 4, "num_stages": 3}
        return {"BM": 128, "BN": BN, "BK": 32, "num_warps": 8 if pool else 4, "num_stages": 3}
    if part == "windows_forward":
        return {"BM": 128 if halved else 64, "BN": BN, "BK": 16, "num_warps": 4, "num_stages": 3}
    if part == "weight":
        return {"BM": 64, "BN": BN, "BQ": 128 if BN == 32 else 64, "num_warps": 4, "num_stages": 1}
    if part == "windows_weight":
        return {"BM": 32, "BN": BN, "num_warps": 4, "num_stages": 4}
    if part == "weight_by_pixel":
        return {"BM": 64, "BN": BN, "BQ": 64, "num_warps": 4, "num_stages": 3}
    if part == "weight_by_sample":
        return {"BT": 64 if halved else 32, "BN": BN, "BQ": 128, "num_warps": 4, "num_stages": 2}
    return {"BM": 128, "BN": BN, "BK": 64 if halved else 32, "ROWS": 64 // BN, "num_warps": 4, "num_stages": 3}


def layout(image: Tensor) -> tuple[int, int]:
    """How far neighbouring pixels and neighbouring channels of ``image`` [R, B, H, W, C] are apart: channels last, or first."""
    return image.stride(3), image.stride(4)


def stored(precision: str) -> torch.dtype:
    """Of factors in memory."""
    return STORED.get(precision, torch.float32)


def factor(image: Tensor, precision: str) -> Tensor:
    """As the kernels read it."""
    return image.contiguous().to(stored(precision))


def forward(
    x: Tensor, filters: Tensor, bias: Tensor | None, out: Tensor, source: Tensor, shape: Shape, pool: bool, precision: str
) -> None:
    """Write into ``out`` and, with ``pool``, ``source``, both [R, B, OH, OW, N]; x is a factor."""
    R, B, H, W, _ = x.shape
    filters = factor(filters, precision)
    OH, OW, N = out.shape[2:]
    tile = tiles("forward", shape.channels, N, shape.width, pool, x.dtype.itemsize == 2)
    grid = (-(-B * OH * OW // tile["BM"]), -(-N // tile["BN"]), R)
    start(
        triton_convolution.forward, grid,
        x, filters, filters if bias is None else bias.contiguous(), out, source,
        B, *layout(out), H, W, OH, OW, *shape.constants(),
        POOL=pool, BIAS=bias is not None, PRECISION=INPUT_PRECISION[precision], **tile,
    )  # fmt: skip


def weight_gradient_pooled(x: Tensor, g: Tensor, source: Tensor, shape: Shape, precision: str) -> tuple[Tensor, Tensor]:
    """Gradients of filters and bias from that of the pooled image, without writing out the one before pooling: each in parts, to
    be summed over their first axis. x is a factor, which may be filled up with channels of zeros."""
    g = g.contiguous()
    scale, of_sums = scaling.of_incoming(g, precision)
    R, B, H, W, pixel = x.shape
    OH, OW, N = g.shape[2:]
    tile = tiles("weight", shape.channels, N, shape.width, True)
    programs = -(-shape.size // tile["BQ"]) * -(-N // tile["BN"])
    count, per_split = splits(B * OH * OW, 256, programs * R, tile["BM"])
    dw, db = (torch.empty(count, R, N, *of, device=g.device) for of in ((shape.size,), ()))
    start(
        triton_convolution.weight_gradient, (programs, count, R),
        x, g, source, dw, db, B, per_split, H, W, OH, OW, pixel, *shape.constants(), PRECISION=INPUT_PRECISION[precision],
        SCALE=scale, OF_SUMS=of_sums, OF_PRODUCTS=scaling.of_products(precision), **tile,
    )  # fmt: skip
    return dw.view(count, R, N, shape.height, shape.width, shape.channels), db


def weight_gradient(x: Tensor, g: Tensor, shape: Shape, precision: str) -> Tensor:
    """Gradient of the filters from that of the image g [R, N, OH, OW, S], samples last, in parts to be summed over their first
    axis. x and g are factors."""
    R, _, H, W, _ = x.shape
    height, width = shape.out(H, W)
    tile = tiles("weight_by_sample", shape.channels, shape.filters, shape.width, False, x.dtype.itemsize == 2)
    programs = -(-shape.size // tile["BQ"]) * -(-shape.filters // tile["BN"])
    count, per_split = splits(height, 1, programs * R, 1)
    dw = torch.empty(count, R, shape.filters, shape.size, device=g.device)
    x = _samples_last(x, shape.channels, shape.pad_h, shape.pad_w)
    start(
        triton_convolution.weight_gradient_by_sample, (programs, count, R),
        x, g, dw, per_split, *x.shape[2:4], height, x.shape[-1], width,
        *shape.constants()[:5], PRECISION=INPUT_PRECISION[precision], OF_PRODUCTS=scaling.of_products(precision), **tile,
    )  # fmt: skip
    return dw.view(count, R, shape.filters, shape.height, shape.width, shape.channels)


def by_pixel(shape: Shape, dtype: torch.dtype) -> bool:
    """Is the weights' gradient summed over samples and pixels as they lie? Tensor cores turn factors of 16 bits themselves."""
    return dtype.itemsize == 2 and shape.channels * dtype.itemsize % ALIGNED == 0


def weight_gradient_by_pixel(x: Tensor, g: Tensor, shape: Shape, precision: str) -> Tensor:
    """The same as :func:`weight_gradient` from g [R, B, OH, OW, N]."""
    R, B, H, W, C = x.shape
    OH, OW, N = g.shape[2:]
    tile = tiles("weight_by_pixel", C, N, shape.width, False, True)
    programs = -(-shape.size // tile["BQ"]) * -(-N // tile["BN"])
    count, per_split = splits(B * OH * OW, 256, programs * R, tile["BM"])
    dw = torch.empty(count, R, N, shape.size, device=g.device)
    start(
        triton_convolution.weight_gradient_by_pixel, (programs, count, R),
        x, g, dw, B, per_split, H, W, OH, OW, *shape.constants(), OF_PRODUCTS=scaling.of_products(precision), **tile,
    )  # fmt: skip
    return dw.view(count, R, N, shape.height, shape.width, C)


def samples_last(g: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """The factor g [R, B, H, W, N] as [R, N, H, W, S], and the bias's gradient in parts, to be summed over their first axis."""
    R, _, H, W, N = g.shape
    sums = torch.empty(H * W, R, N, device=g.device)
    return _samples_last(g, N, sums=sums, of_sums=scaling.of_products(precision)), sums


def aligned(samples: int, dtype: torch.dtype) -> int:
    """The next number of samples that fills whole reads."""
    multiple = ALIGNED // dtype.itemsize
    return -(-samples // multiple) * multiple


def _samples_last(
    x: Tensor,
    channels: int,
    pad_h: int = 0,
    pad_w: int = 0,
    S: int | None = None,
    dtype: torch.dtype | None = None,
    sums: Tensor | None = None,
    of_sums: float = 1.0,
) -> Tensor:
    """The first channels of [R, B, H, W, C] as [R, channels, H + 2 pad_h, W + 2 pad_w, S], filled up with zeros beyond B.

    S: unless given, an aligned number; dtype: else the same. sums [pixels, R, channels]: over the samples, times of_sums.
    """
    R, B, H, W, C = x.shape
    dtype = dtype or x.dtype
    S = S or aligned(B, dtype)
    out = x.new_empty(R, channels, H + 2 * pad_h, W + 2 * pad_w, S, dtype=dtype)
    BC = 32 if channels > 4 else 4
    grid = (out.shape[2] * out.shape[3], -(-channels // BC), R)
    start(
        triton_convolution.samples_last, grid,
        x, out, out if sums is None else sums, B, H, W, C, channels, S, pad_h, pad_w,
        SUM=sums is not None, OF_SUMS=of_sums, BB=64, BC=BC, num_warps=4,
    )  # fmt: skip
    return out


def input_gradient(g: Tensor, filters: Tensor, out: Tensor, shape: Shape, precision: str) -> None:
    """Write into ``out`` [R, B, H, W, C]; g is a factor, and where ``out`` is stored as one it is scaled as g is."""
    R, B, H, W, C = out.shape
    OH, OW, N = g.shape[2:]
    tile = tiles("input", C, N, shape.width, False, g.dtype.itemsize == 2)
    if shape.stride > 1:
        tile["ROWS"] = 1
    lines = -(-H // tile["ROWS"]) * shape.stride
    grid = (-(-(-(-W // shape.stride) * B) // tile["BM"]), -(-C // tile["BN"]) * lines, R)
    turned = _samples_last(filters.contiguous(), C, S=N, dtype=g.dtype)
    start(
        triton_convolution.input_gradient, grid,
        g, turned, out, B, H, W, OH, OW, *shape.constants(), PRECISION=INPUT_PRECISION[precision],
        OF_PRODUCTS=scaling.of_outgoing(out, precision), **tile,
    )  # fmt: skip


def splits(length: int, least: int, programs: int, multiple: int) -> tuple[int, int]:
    """Into how many parts a sum over ``length`` falls so that the GPU is full, and the length of each."""
    count = max(1, min(length // least, PROGRAMS // programs))
    per_split = -(-length // (count * multiple)) * multiple
    return -(-length // per_split), per_split
