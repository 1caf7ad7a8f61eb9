"""More replicas of an operation that takes a stack of them already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def of_all_replicas(
    function: type[torch.autograd.Function], tensors: int, size: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """Another axis of replicas, of this size, joins the first one. The first inputs are tensors, some None or empty."""

    def merged(tensor: Tensor | None, axis: int | None) -> Tensor | None:
        if tensor is None or not tensor.numel():
            return tensor
        spread = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        return spread.flatten(0, 1)

    found = function.apply(*(merged(t, axis) for t, axis in zip(inputs[:tensors], in_dims, strict=False)), *inputs[tensors:])
    return (
        tuple(t.unflatten(0, (size, -1)) if t.numel() else t for t in found),
        tuple(0 if t.numel() else None for t in found),
    )
