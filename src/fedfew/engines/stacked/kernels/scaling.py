"""Gradients that are stored as factors in float16, which has the digits of TF32 but not its range: they are scaled.

A float16 is at most 65504 and has all its digits down to 6.1e-5, and gradients of a mean loss are often smaller. So gradients are
multiplied by a power of 2 when they are stored, which costs no digit, and what is computed from them is divided by it in float32.
A gradient that is too large even so becomes infinite, and the update is not finite. In other precisions all factors here are 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE = {"fp16": 2.0**12}
"""By precision. Gradients up to 16 fit, and those down to 1.5e-8 keep all their digits."""


def scale(precision: str) -> float:
    """How many times as large gradients are that are stored as factors."""
    return SCALE.get(precision, 1.0)


def of_products(precision: str) -> float:
    """What makes a gradient of a product in which a scaled gradient was a factor."""
    return 1 / scale(precision)


def of_incoming(g: Tensor, precision: str) -> tuple[float, float]:
    """What makes the gradient g a factor, and what makes a gradient of a sum of its numbers as they are.

    A gradient in float16 is that of a tensor which is itself stored as a factor: it is scaled already.
    """
    return (1.0, of_products(precision)) if g.dtype == torch.float16 else (scale(precision), 1.0)


def of_outgoing(dx: Tensor, precision: str) -> float:
    """What makes the gradient dx, stored in its type, of a product in which a scaled gradient was a factor."""
    return 1.0 if dx.dtype == torch.float16 else of_products(precision)


def factor(g: Tensor, dtype: torch.dtype, precision: str) -> Tensor:
    """The gradient g as the kernels read it."""
    times, _ = of_incoming(g, precision)
    if times == 1:
        return g.contiguous().to(dtype)
    return torch.mul(g, times, out=torch.empty(g.shape, dtype=dtype, device=g.device))  # scaled and rounded in one pass
