"""Which block sizes suit the convolution kernels: every candidate timed on the GPU, the fastest few of each layer shown.

    python benchmarks/kernels.py [--json FILE]

``fedfew.engines.stacked.kernels.convolution`` uses what this printed on an H200. Candidates are compiled side by side first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedfew.engines.stacked.kernels import convolution, launch, windows

# name: replicas, batch, channels, height, width, filters, filter height and width, stride, padding, pooled, input gradient wanted
LAYERS: dict[str, tuple[Any, ...]] = {
    "cnn 1": (60, 50, 3, 32, 32, 32, 5, 5, 1, (0, 0), True, False),
    "cnn 2": (60, 50, 32, 14, 14, 64, 5, 5, 1, (0, 0), True, True),
    "cnn 2, one model": (1, 50, 32, 14, 14, 64, 5, 5, 1, (0, 0), True, True),
    "cnn 2, one client": (3, 50, 32, 14, 14, 64, 5, 5, 1, (0, 0), True, True),
    "resnet 64": (18, 50, 64, 16, 16, 64, 3, 3, 1, (1, 1), False, True),
    "resnet 256": (18, 50, 256, 4, 4, 256, 3, 3, 1, (1, 1), False, True),
    "text 4": (60, 50, 512, 1, 100, 100, 1, 4, 1, (0, 0), False, True),
}
STORED = (False, False)  # what comes out: channels last, in float32
PARTS = ("forward", "weight", "weight_by_sample", "weight_by_pixel", "input", "windows_forward", "windows_weight")
KERNELS = {
    "input": "input_gradient",
    "weight_by_sample": "weight_gradient_by_sample",
    "weight_by_pixel": "weight_gradient_by_pixel",
    "windows_forward": "forward",
}


def candidates(part: str, layer: str) -> Iterator[dict[str, int]]:
    _, _, channels, _, _, filters, *_ = LAYERS[layer]
    columns = channels if part == "input" else filters
    name, inner, rows_name, rows = {
        "forward": ("BK", [16, 32] if channels == 3 else [32, 64], "BM", [32, 64, 128]),
        "weight": ("BQ", [64, 128], "BM", [32, 64]),
        "weight_by_sample": ("BQ", [64, 128], "BT", [32, 64]),
        "weight_by_pixel": ("BQ", [64, 128, 256], "BM", [32, 64, 128]),
        "input": ("BK", [32, 64], "BM", [64, 128, 256]),
        "windows_forward": ("BK", [16, 32, 64], "BM", [64, 128]),
        "windows_weight": ("", [0], "BM", [32]),
    }[part]
    across = [32] if columns <= 32 else [64, 128] if columns > 64 else [64]
    for rows_block, BN, inner_block, (warps, stages) in itertools.product(
        rows, across, inner, [(4, 1), (4, 2), (4, 3), (4, 4), (8, 2), (8, 3)]
    ):
        blocks = {rows_name: rows_block, "BN": BN} | ({name: inner_block} if name else {})
        if part == "input":
            blocks["ROWS"] = max(1, 64 // BN)
        yield blocks | {"num_warps": warps, "num_stages": stages}


def parts_of(layer: str, precision: str) -> tuple[str, ...]:
    """Which computations it consists of."""
    *_, filters, height, width, stride, padding, pool, inputs = LAYERS[layer]
    shape = launch.Shape(LAYERS[layer][2], filters, height, width, stride, *padding)
    dtype = launch.stored(precision)
    forward = "windows_forward" if windows.suit(shape, pool, precision) else "forward"
    if inputs:
        return forward, "weight_by_pixel" if launch.by_pixel(shape, dtype) else "weight_by_sample", "input"
    return forward, "windows_weight" if forward == "windows_forward" and windows.suit_gradient(dtype) else "weight"


def data(layer: str, replicas: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    R, B, C, H, W, N, KH, KW, *_ = LAYERS[layer]
    R = replicas or R
    x = torch.randn(R, B, H, W, C, device="cuda").permute(0, 1, 4, 2, 3)
    return x, torch.randn(R, N, C, KH, KW, device="cuda"), torch.randn(R, N, device="cuda")


class Part:
    """One of a layer's three computations, with block sizes of one's choice."""

    def __init__(self, layer: str, part: str, precision: str, replicas: int | None = None) -> None:
        *_, stride, padding, pool, _ = LAYERS[layer]
        self.part = part
        self.x, self.weight, self.bias = data(layer, replicas)
        self.settings: tuple[Any, ...] = (stride, *padding, pool)
        self.precision = precision
        self.out, self.source, seen = convolution._forward(self.x, self.weight, self.bias, *self.settings, *STORED, precision)
        self.seen = seen if seen.numel() else self.x
        self.g = torch.randn_like(self.out)

    def run(self, tile: dict[str, int]) -> None:
        usual = launch.tiles

        def tiles(part: str, *about: Any) -> dict[str, int]:
            return tile if part == self.part else usual(part, *about)

        launch.tiles = tiles  # type: ignore[assignment]  # called the same way
        try:
            if self.part.endswith("forward"):
                convolution._forward(self.x, self.weight, self.bias, *self.settings, *STORED, self.precision)
            else:
                inputs = None if self.part.endswith("weight") else self.x.dtype
                about = *self.settings, inputs, True, self.precision
                convolution._backward(self.g, self.source, self.seen, self.weight, *about)
        finally:
            launch.tiles = usual

    def milliseconds(self, tile: dict[str, int], repeats: int = 5) -> float:
        """Of the kernel itself, from the profiler: other parts of a backward pass are left out."""
        self.run(tile)
        kernel = KERNELS.get(self.part, "forward" if self.part == "forward" else "weight_gradient")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(repeats):
                self.run(tile)
            torch.cuda.synchronize()
        return sum(e.device_time_total for e in profile.key_averages() if e.key == kernel) / repeats / 1000


def compile_some(jobs: list[tuple[str, str, dict[str, int], str]]) -> None:
    for layer, part, tile, precision in jobs:
        try:
            Part(layer, part, precision, replicas=1).run(tile)
        except Exception as error:  # a candidate that does not fit is no candidate
            print(layer, part, tile, type(error).__name__)


def flops(layer: str, part: str, replicas: int) -> float:
    _, B, C, H, W, N, KH, KW, stride, padding, _, _ = LAYERS[layer]
    OH, OW = (H + 2 * padding[0] - KH) // stride + 1, (W + 2 * padding[1] - KW) // stride + 1
    return float(2 * replicas * B * OH * OW * KH * KW * C * N)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--parts", nargs="*", default=PARTS)
    parser.add_argument("--processes", type=int, default=14)
    options = parser.parse_args()
    jobs = [
        (layer, part, tile, options.precision)
        for layer in options.layers
        for part in options.parts
        if part in parts_of(layer, options.precision)
        for tile in candidates(part, layer)
    ]
    print(len(jobs), "candidates")
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.processes) as pool:
        pool.map(compile_some, [jobs[i :: 4 * options.processes] for i in range(4 * options.processes)], chunksize=1)
    results = []
    for layer, part in sorted({(layer, part) for layer, part, _, _ in jobs}):
        work = Part(layer, part, options.precision)
        times = []
        for _, _, tile, _ in (job for job in jobs if job[:2] == (layer, part)):
            try:
                times.append((work.milliseconds(tile), tile))
            except Exception as error:
                print(layer, part, tile, type(error).__name__)
        times.sort(key=lambda pair: pair[0])
        for milliseconds, tile in times[:5]:
            rate = flops(layer, part, LAYERS[layer][0]) / milliseconds / 1e9
            print(f"{layer:<18} {part:<16} {milliseconds:8.4f} ms {rate:7.1f} TFLOP/s  {tile}", flush=True)
        results += [{"layer": layer, "part": part, "ms": ms, **tile} for ms, tile in times]
        del work
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
