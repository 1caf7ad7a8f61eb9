"""What ``torch.func.vmap`` makes of some functions of PyTorch is not what a replica by itself gets: here it is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from fedfew.engines.base import REMEDY, UnsupportedModuleError


class SameUnderVmap(TorchFunctionMode):
    """Within, modules under vmap compute what they compute outside, or are refused."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return OTHERS.get(func, func)(*args, **(kwargs or {}))


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """vmap puts the replicas' tables below one another and loses which rows are padding, whose gradient is cut off here."""
    if max_norm is not None or sparse or scale_grad_by_freq:
        raise UnsupportedModuleError(
            f"the stacked engine cannot take an embedding with max_norm, sparse or scale_grad_by_freq{REMEDY}"
        )
    vectors = F.embedding(input, weight)
    if padding_idx is None:
        return vectors
    return torch.where((input == padding_idx % len(weight))[..., None], vectors.detach(), vectors)


def _plain_embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    padding = None if padding_idx < 0 else padding_idx
    return _embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def _requires_grad(tensor: Tensor) -> bool:
    """vmap says no, and a module that asks would leave out its hooks on gradients, or compute what has none."""
    while not tensor.requires_grad and is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad


OTHERS = {
    F.embedding: _embedding,
    torch.embedding: _plain_embedding,
    Tensor.requires_grad.__get__: _requires_grad,  # type: ignore[attr-defined]  # a property, in PyTorch's own C
}
