"""How exactly a GPU multiplies: the factors of products in convolutions and linear layers, never what is summed or stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from fedfew.config import Precision


@contextmanager
def products(precision: Precision, device: torch.device) -> Iterator[None]:
    """Within: PyTorch's own products on this device in this precision. The CPU always computes in float32.

    fp16 is TF32 here, whose numbers have as many digits: float16 lacks range, so gradients would have to be scaled in all of a
    model. The stack's own convolutions do so between themselves (see ``engines.stacked.kernels.scaling``).
    """
    if device.type != "cuda":
        yield
        return
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # type: ignore[attr-defined]  # set at run time
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee" if precision == "fp32" else "tf32"
    try:
        with _rounded_to_bf16() if precision == "bf16" else nullcontext():
            yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def _rounded_to_bf16() -> torch.autocast:
    """Without its cache: of weights that a step has moved, autocast would go on using what it rounded before."""
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)


def not_rounded() -> AbstractContextManager[object]:
    """Within: operations as they are called, where those around them are rounded to bf16."""
    return torch.autocast("cuda", enabled=False) if torch.is_autocast_enabled("cuda") else nullcontext()


def in_tf32() -> bool:
    """Do PyTorch's own products of float32 on a GPU round their factors to TF32 here?"""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
