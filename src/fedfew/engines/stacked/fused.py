"""Layers of a module replaced by those that the kernels compute for a whole stack at once; names of parameters stay the same.

A convolution followed by ReLU and 2×2 pooling becomes one layer, as in the paper's CNN; so do convolutions over words of which
only the maximum counts. Every other plain convolution becomes one by itself. What is not recognised stays as it is and runs on
PyTorch's own operations.

In float16 the gradient between two convolutions is scaled (see ``kernels.scaling``), so nothing else may read what lies between
them. Of layers that a module calls one by one that cannot be known: there float32 is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedfew.config import Precision
from fedfew.models.layers import become, has_hooks
from fedfew.models.max_over_time import MaxOverTime, is_plain


class FusedConvolution(nn.Module):
    """``nn.Conv2d`` or ``nn.Conv1d``, sharing its parameters; with ``pool`` followed by ReLU and the maximum of 2×2 pixels.
    then: the layer that comes next, which decides how the result is stored."""

    def __init__(self, plain: nn.Module, precision: Precision, pool: bool = False, then: nn.Module | None = None) -> None:
        super().__init__()
        assert isinstance(plain, nn.Conv1d | nn.Conv2d)
        self.weight, self.bias = plain.weight, plain.bias
        self.stride = plain.stride[-1]
        padding = plain.padding
        assert isinstance(padding, tuple)
        self.padding = (0, padding[0]) if len(padding) == 1 else (padding[0], padding[1])
        self.pool, self.precision = pool, precision
        self.flattened = pool and type(then) is nn.Flatten
        self.as_factor = then is not None and _is_plain(then)

    def forward(self, x: Tensor, from_factor: bool = False, for_next_alone: bool = False) -> Tensor:
        """from_factor: x is stored as a factor by a convolution that was told that this one alone reads it, for_next_alone."""
        from fedfew.engines.stacked.kernels.convolution import convolution

        weight, flat = self.weight, self.weight.ndim == 3
        if flat:  # a sequence is an image of one row
            x, weight = x.unsqueeze(-2), weight.unsqueeze(-2)
        bias = None if self.bias is None else self.bias[None]
        stored = self.flattened, self.as_factor and (for_next_alone or self.precision != "fp16"), from_factor
        y = convolution(x[None], weight[None], bias, self.stride, self.padding, self.pool, self.precision, *stored)
        y = y.squeeze(0)  # y[0] would be the same, but its gradient a copy into zeros
        return y.squeeze(-2) if flat else y


class FusedSequential(nn.Sequential):
    """``nn.Sequential`` whose convolutions are told that the next one alone reads their result."""

    def forward(self, x: Tensor) -> Tensor:
        layers, from_factor = list(self), False
        for at, layer in enumerate(layers):
            if isinstance(layer, FusedConvolution):
                then = next((later for later in layers[at + 1 :] if type(later) is not nn.Identity), None)
                for_next = layer.as_factor and isinstance(then, FusedConvolution)
                x, from_factor = layer(x, from_factor, for_next), for_next
            else:
                x = layer(x)
        return x


class FusedMaxOverTime(MaxOverTime):
    """``MaxOverTime`` without all answers in memory, and with gradients that visit one window per filter and text."""

    precision: Precision

    def forward(self, vectors: Tensor) -> Tensor:
        from fedfew.engines.stacked.kernels.max_over_time import max_over_time

        layers = [layer for layer in self if isinstance(layer, nn.Conv1d)]  # all of them, and all have a bias
        biases = [layer.bias for layer in layers if layer.bias is not None]
        largest = max_over_time(vectors[None], [layer.weight[None] for layer in layers], self.precision)
        return largest.squeeze(0) + torch.cat(biases)


PLAIN_ORDER = (nn.Sequential, FusedSequential)  # types of modules whose layers are called in their order


class ContiguousGroupNorm(nn.GroupNorm):
    """``nn.GroupNorm`` for images laid out channels last, which PyTorch's own takes wrongly or not at all under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous())


def image_layout(module: nn.Module) -> tuple[int, torch.dtype]:
    """To how many channels images are best filled up with zeros in memory, and how their numbers are stored: as the kernels of
    the first layer read them."""
    first = module[0] if isinstance(module, PLAIN_ORDER) and type(module) in PLAIN_ORDER and len(module) else None
    if not isinstance(first, FusedConvolution) or first.weight.ndim != 4:
        return 1, torch.float32
    from fedfew.engines.stacked.kernels import launch, windows

    filters, channels, height, width = first.weight.shape
    shape = launch.Shape(channels, filters, height, width, first.stride, *first.padding)
    suits = windows.suit(shape, first.pool, first.precision)
    return (windows.CHANNELS, launch.stored(first.precision)) if suits else (1, torch.float32)


def make_fused(module: nn.Module, precision: Precision) -> nn.Module:
    """The module itself, with every layer replaced that there is a kernel for."""
    if _is_plain(module):
        return FusedConvolution(module, precision)
    for parent in list(module.modules()):
        if type(parent) is MaxOverTime and all(map(is_plain, parent)):
            become(parent, FusedMaxOverTime).precision = precision
            continue
        pooled = _pooled(parent) if type(parent) is nn.Sequential else set()
        for name, child in _children(parent):
            if type(child) is nn.GroupNorm:
                become(child, ContiguousGroupNorm)
            if _is_plain(child):
                after = _after(parent, name)
                taken = 2 if name in pooled else 0  # layers that are done with the convolution
                then = after[taken][1] if type(parent) is nn.Sequential and len(after) > taken else None
                setattr(parent, name, FusedConvolution(child, precision, name in pooled, then))
                for done, _ in after[:taken]:
                    setattr(parent, done, nn.Identity())
        if precision == "fp16" and type(parent) is nn.Sequential:
            become(parent, FusedSequential)
    return module


def _is_plain(layer: nn.Module) -> bool:
    """Is it a convolution that the kernels know: one group, no dilation, padding by zeros, one stride, no hooks?"""
    if not isinstance(layer, nn.Conv1d | nn.Conv2d) or type(layer) not in (nn.Conv1d, nn.Conv2d) or has_hooks(layer):
        return False
    simple = layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros" and len(set(layer.stride)) == 1
    flat_stride = type(layer) is nn.Conv2d or layer.stride == (1,)
    return simple and flat_stride and isinstance(layer.padding, tuple)


def _pooled(sequence: nn.Sequential) -> set[str]:
    """Names of the convolutions which ReLU and 2×2 pooling follow, in either order: it makes no difference."""
    layers = _children(sequence)
    return {
        name
        for (name, layer), (_, second), (_, third) in zip(layers, layers[1:], layers[2:], strict=False)
        if _is_plain(layer)
        and type(layer) is nn.Conv2d
        and any(_halves(a) and type(b) is nn.ReLU for a, b in _both(second, third))
        and not (has_hooks(second) or has_hooks(third))
    }


def _both(a: nn.Module, b: nn.Module) -> tuple[tuple[nn.Module, nn.Module], tuple[nn.Module, nn.Module]]:
    return (a, b), (b, a)


def _halves(layer: nn.Module) -> bool:
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    pairs = [(v, v) if isinstance(v, int) else tuple(v) for v in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]


def _after(sequence: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """The children that come after the one of this name."""
    children = _children(sequence)
    return children[1 + [child for child, _ in children].index(name) :]


def _children(parent: nn.Module) -> list[tuple[str, nn.Module]]:
    """By name, in order; ``named_children`` leaves out a layer that is there a second time, and with it the order of the rest."""
    return [(name, child) for name, child in parent._modules.items() if child is not None]
