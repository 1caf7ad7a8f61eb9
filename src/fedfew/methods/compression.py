"""Updates made smaller for the way to the server, and what the site keeps of what was lost.

bf16: every number rounded to 8 significant bits, half the bytes; the relative error is at most 2⁻⁸ (for normal numbers).
int8: every tensor of every model has a scale s = max|x| / 127 and is sent as whole numbers round(x / s), a quarter of the bytes;
the error of a number is at most s/2, which is much for the small ones. With error feedback (Seide et al. 2014; Karimireddy et al.
2019) a site adds what was lost in this round to its update of the next, so that what the server adds up stays within one rounding
of the truth.

Updates are trees ``[models, …]`` of one client, or stacks ``[clients, models, …]``. Whole numbers (counts of batches) travel as
they are.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fedfew.stack import Tree, add, named_leaves, subtract, tensor, tree_map

Way = Literal["none", "bf16", "int8"]
WAYS: tuple[Way, ...] = get_args(Way)
NUMBERS, SCALE = "int8", "scale"
LARGEST = 127


def encode(update: Tree, way: Way, axes: int = 1) -> Tree:
    """What travels. ``axes``: how many leading axes (models; clients and models) count the tensors that have a scale each."""
    if way not in WAYS:
        raise ValueError(f"compression must be {', '.join(WAYS[:-1])} or {WAYS[-1]}, not {way!r}")
    if way == "none":
        return update
    encoded: Tree = {}
    for name, value in update.items():
        if isinstance(value, dict):
            encoded[name] = encode(value, way, axes)
        elif not value.is_floating_point():
            encoded[name] = value
        else:
            encoded[name] = _bf16(value) if way == "bf16" else _int8(value, axes)
    return encoded


def decode(encoded: Tree, like: Tree, way: Way) -> Tree:
    """The update that arrives; ``like`` has its names and types. What is not finite stays so."""
    if way == "none":
        return encoded
    return tree_map(_decoded, like, encoded)


def with_feedback(update: Tree, lost: Tree, way: Way, axes: int = 1) -> tuple[Tree, Tree]:
    """What travels of this update and of what was ``lost`` before ({}: nothing), and what is lost now."""
    wanted = add(update, lost) if lost else update
    encoded = encode(wanted, way, axes)
    arrives = decode(encoded, wanted, way)
    return encoded, tree_map(_or_zero, subtract(wanted, arrives))


def check(encoded: Tree, like: Tree, way: Way) -> None:
    """Refuse, naming the tensor, numbers that are not finite; names, shapes and types must have been compared before."""
    if way == "none":
        return
    for path, scale in named_leaves(encoded):
        if path.endswith(f"/{SCALE}") and bool((scale < 0).any()):
            raise ValueError(f"{path} is negative")
    for path, value in named_leaves(decode(encoded, like, way)):
        if not bool(value.isfinite().all()):
            raise ValueError(f"{path} is not finite")


def _bf16(x: Tensor) -> Tensor:
    """As bits, since numpy has no bfloat16."""
    return x.to(torch.bfloat16).view(torch.uint16)


def _int8(x: Tensor, axes: int) -> Tree:
    flat = x.to(torch.float32).reshape(*x.shape[:axes], -1)
    scale = flat.abs().amax(-1, keepdim=True) / LARGEST  # NaN where one number is: then none of them can be read
    whole = torch.where(scale > 0, flat / scale, 0.0).round().clamp(-LARGEST, LARGEST)
    return {NUMBERS: whole.nan_to_num().to(torch.int8).reshape(x.shape), SCALE: scale[..., 0]}


def _decoded(like: Tensor, arrived: Tensor | Tree) -> Tensor:
    if isinstance(arrived, dict):
        whole, scale = tensor(arrived, NUMBERS), tensor(arrived, SCALE)
        return (whole * scale.reshape(scale.shape + (1,) * (whole.ndim - scale.ndim))).to(like.dtype)
    return arrived.view(torch.bfloat16).to(like.dtype) if like.is_floating_point() else arrived


def _or_zero(lost: Tensor) -> Tensor:
    """An update that is not finite is refused by the server; the site's next one must not suffer from it."""
    return torch.where(lost.isfinite(), lost, 0) if lost.is_floating_point() else lost
