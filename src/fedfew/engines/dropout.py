"""Dropout with counted randomness, so that all engines drop the same units.

PyTorch's dropout layers draw from a global generator, whose state depends on what ran before. Here the mask is a hash of (the
replica's key for this step, the layer, its calls so far in the pass, the unit); four units share the 64 bits of one, for on a
CPU hashing takes a fifth of a small CNN's time otherwise. Modules that call ``F.dropout`` themselves still work, but their draws
are not counted (:mod:`fedfew.training.own_randomness`).
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew import random_streams
from fedfew.models.layers import become

BITS = 16  # a unit's lot
SATURATION = -1.7580993408473766  # what SELU gives for −∞: alpha dropout puts it in the place of what is dropped


class _Running(threading.local):
    """What runs in this thread."""

    key: Tensor | None = None
    calls: Counter[int] | None = None  # of each layer, in the pass that is running


_running = _Running()


@contextmanager
def keyed(key: Tensor) -> Iterator[None]:
    """Within: the key of the replica and step that is running (a vmapped tensor in the stack)."""
    before, _running.key = _running.key, key
    try:
        yield
    finally:
        _running.key = before


@contextmanager
def one_pass() -> Iterator[None]:
    """Within: one pass through the module. A layer that is called again in it drops other units; in another pass, the same."""
    before, _running.calls = _running.calls, Counter()
    try:
        yield
    finally:
        _running.calls = before


_library = torch.library.Library("fedfew", "FRAGMENT")
_library.define("as_int16(Tensor(a) words) -> Tensor(a)")  # TorchScript's interpreter has no views of another type


@torch.library.impl(_library, "as_int16", "CompositeExplicitAutograd")
def _as_int16(words: Tensor) -> Tensor:
    return words.view(torch.int16)


class _AtLeast(torch.autograd.Function):
    """For int64 numbers [*R, n], read as int16 numbers [*R, 4n]: 1 where one is at least ``least``, else 0, written over them.

    The result is int16 rather than bool: a CPU compares and converts it in a sixth of the time. It has a rule for vmap because
    vmap of PyTorch 2.11 has no view as a smaller type, and vmap of no version has ``ge_``.
    """

    @staticmethod
    def forward(words: Tensor, least: int) -> Tensor:
        lots: Tensor = torch.ops.fedfew.as_int16.default(words)
        return lots.ge_(least)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], words: Tensor, least: int) -> tuple[Tensor, int]:
        found: Tensor = _AtLeast.apply(words.movedim(in_dims[0], 0).contiguous(), least)
        return found, 0


@dataclass(frozen=True)
class Kind:
    """What one of PyTorch's layers drops."""

    channels: bool = False  # whole ones, x[sample, channel], instead of single units
    batched: int | None = None  # an input with another number of dimensions is a single sample x[channel]; None: none is
    alpha: bool = False  # dropped units are set to SELU's least value, and all are scaled to keep mean and variance

    def units(self, shape: torch.Size) -> torch.Size:
        """The shape of what is drawn for an input of this shape, against which it broadcasts."""
        if not self.channels:
            return shape
        drawn = 2 if self.batched in (None, len(shape)) else 1
        return shape[:drawn] + torch.Size([1] * (len(shape) - drawn))


KINDS: dict[type[nn.Module], Kind] = {
    nn.Dropout: Kind(),
    nn.Dropout1d: Kind(channels=True, batched=3),
    nn.Dropout2d: Kind(channels=True),
    nn.Dropout3d: Kind(channels=True, batched=5),
    nn.AlphaDropout: Kind(alpha=True),
    nn.FeatureAlphaDropout: Kind(channels=True, alpha=True),
}


class CountedDropout(nn.Module):
    def __init__(self, p: float, layer: int, kind: Kind = KINDS[nn.Dropout]) -> None:
        super().__init__()
        self.p = p
        self.layer = layer
        self.kind = kind

    @classmethod
    def of(cls, layer: nn.Module, number: int) -> CountedDropout:
        """The layer itself, made a counted one."""
        kind = KINDS[type(layer)]
        counted = become(layer, cls)
        counted.layer, counted.kind = number, kind
        return counted

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0 or _running.key is None:
            return x
        dropped = round(self.p * 2**BITS)  # of the 2¹⁶ numbers that are drawn from
        if dropped == 2**BITS:
            return x * 0
        kept = self._kept(_running.key, dropped, self.kind.units(x.shape), x.device).to(x.dtype)
        if not self.kind.alpha:
            return x * (kept * (2**BITS / (2**BITS - dropped)))
        p = dropped / 2**BITS
        scale = ((1 - p) * (1 + p * SATURATION**2)) ** -0.5
        return x * (kept * scale) + SATURATION * scale * (1 - p - kept)

    def _kept(self, key: Tensor, dropped: int, shape: torch.Size, device: torch.device) -> Tensor:
        """1 for each unit that is kept, else 0."""
        words = random_streams.count(key, *self._place(), torch.arange(-(-shape.numel() // 4), device=device))
        kept: Tensor = _AtLeast.apply(words, dropped - 2 ** (BITS - 1))
        return kept[: shape.numel()].reshape(shape)

    def _place(self) -> tuple[int, ...]:
        """The layer's number, and at a later call in the same pass how many there were before."""
        if _running.calls is None:
            return (self.layer,)
        before = _running.calls[self.layer]
        _running.calls[self.layer] += 1
        return (self.layer, before) if before else (self.layer,)


class CountedAttention(nn.MultiheadAttention):
    """Attention that drops its weights by :class:`CountedDropout`: PyTorch computes them, and here those kept meet the values."""

    counted: CountedDropout

    @classmethod
    def of(cls, layer: nn.MultiheadAttention, number: int) -> CountedAttention:
        """The layer itself, made a counted one."""
        counted = become(layer, cls)
        counted.counted, counted.dropout = CountedDropout(layer.dropout, number), 0.0
        return counted

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        given = (query, key, value, key_padding_mask)
        if not self.training or _running.key is None:
            found: tuple[Tensor, Tensor | None] = super().forward(
                *given, need_weights, attn_mask, average_attn_weights, is_causal
            )
            return found
        _, weights = super().forward(*given, True, attn_mask, False, is_causal)
        weights = self.counted(weights)  # [samples, heads, queries, keys]; of a single sample without the first
        time_first = value.ndim == 3 and not self.batch_first
        heads = self._values(value.transpose(0, 1) if time_first else value).unflatten(-1, (self.num_heads, -1))
        outputs = self.out_proj((weights @ heads.transpose(-2, -3)).transpose(-2, -3).flatten(-2))
        shown = weights.mean(-3) if average_attn_weights else weights
        return outputs.transpose(0, 1) if time_first else outputs, shown if need_weights else None

    def _values(self, value: Tensor) -> Tensor:
        """The values [samples, keys, features] that the weights are for, those that PyTorch appends included."""
        weight = self.v_proj_weight if self.in_proj_weight is None else self.in_proj_weight[-self.embed_dim :]
        values = F.linear(value, weight, None if self.in_proj_bias is None else self.in_proj_bias[-self.embed_dim :])
        if self.bias_v is not None:
            values = torch.cat([values, self.bias_v[0].expand(*values.shape[:-2], 1, -1)], -2)
        return F.pad(values, (0, 0, 0, 1)) if self.add_zero_attn else values


def make_counted(module: nn.Module) -> nn.Module:
    """A copy of the module in which all dropout of PyTorch's layers is counted, but for that of recurrent ones; names of
    parameters and buffers stay the same."""
    module = copy.deepcopy(module)
    for number, layer in enumerate(list(module.modules())):
        if type(layer) is nn.MultiheadAttention and layer.dropout:
            CountedAttention.of(layer, number)
        elif type(layer) in KINDS:
            CountedDropout.of(layer, number)
    return module
