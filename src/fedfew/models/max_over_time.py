"""The largest answer of each filter in a text, with a gradient that visits only the words where it was found.

Of a convolution over words of which only the maximum over time counts (Kim 2014), a filter's gradient is that of one window per
text. A gradient of all answers, of which the maximum's is zero but there, takes twice the arithmetic of the convolution itself;
this one takes a hundredth of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.models.layers import has_hooks

Parts = tuple[Tensor, ...]


class MaxOverTime(nn.ModuleList):
    """Convolutions of texts [B, T, D], side by side, and of each filter the largest answer: a layer, so that the stack can put
    one for a GPU in its place."""

    def forward(self, vectors: Tensor) -> Tensor:
        return max_over_time(vectors, self)


def max_over_time(vectors: Tensor, convolutions: nn.ModuleList) -> Tensor:
    """``convolution(vectors.mT).amax(-1)`` of each convolution, side by side, for vectors[B, T, D]: [B, filters].

    On a GPU, where the stack has kernels of its own, of layers that are not plain and in a traced program it is just that.
    """
    if vectors.is_cuda or not all(map(is_plain, convolutions)) or torch.jit.is_tracing():  # type: ignore[attr-defined]  # public
        return torch.cat([layer(vectors.mT).amax(-1) for layer in convolutions], 1)
    plain = [layer for layer in convolutions if isinstance(layer, nn.Conv1d)]  # all of them, and all have a bias
    weights, biases = [layer.weight for layer in plain], [layer.bias for layer in plain if layer.bias is not None]
    with torch.no_grad():
        found = [_largest(vectors, weight) for weight in weights]
        index = torch.cat([at for _, at in found], 1)
        largest = torch.cat([value + bias for (value, _), bias in zip(found, biases, strict=True)], 1)
    if not torch.is_grad_enabled():
        return largest
    answers: Tensor = _Largest.apply(largest, index, vectors, *weights, *biases)
    return answers


def is_plain(layer: nn.Module) -> bool:
    """Is it a convolution with a bias whose windows begin at every word and hold neighbouring words of the text alone?"""
    if type(layer) is not nn.Conv1d or layer.bias is None or has_hooks(layer):
        return False
    return (layer.stride, layer.padding, layer.dilation, layer.groups) == ((1,), (0,), (1,), 1)


def _largest(vectors: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of each filter ``weight[F, D, W]`` the largest answer in the text, and where its window begins, [B, F].

    A text is an image of one row here, laid out channels last as it is: of what lies otherwise PyTorch takes three times as long.
    """
    answers = F.conv2d(vectors.mT.unsqueeze(2), weight.unsqueeze(2))
    value, index = answers.squeeze(2).max(2)
    return value, index


class _Largest(torch.autograd.Function):
    """``largest[*R, B, F]`` as a function of vectors[*R, B, T, D], weights[*R, F, D, W] and biases[*R, F]: a replica, and under
    vmap any number of them."""

    @staticmethod
    def forward(largest: Tensor, index: Tensor, vectors: Tensor, *weights_and_biases: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.alias(largest)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Parts, output: Tensor) -> None:
        _, index, vectors, *rest = inputs
        ctx.save_for_backward(index, vectors, *rest[: len(rest) // 2])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        index, vectors, *weights = ctx.saved_tensors
        of_vectors, *of_filters = _Gradients.apply(ctx.needs_input_grad[2], gradients[0], index, vectors, *weights)
        of_biases = gradients[0].sum(-2).split([weight.shape[-3] for weight in weights], -1)
        return None, None, of_vectors if ctx.needs_input_grad[2] else None, *of_filters, *of_biases

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        found: Tensor = _Largest.apply(*_with_replicas(info.batch_size, in_dims, inputs))
        return found, 0


class _Gradients(torch.autograd.Function):
    """A function of its own, because gradients that are taken within vmap go through vmap again."""

    @staticmethod
    def forward(of_vectors: bool, g: Tensor, index: Tensor, vectors: Tensor, *weights: Tensor) -> Parts:
        replicas, texts, words = vectors.shape[:-3].numel(), *vectors.shape[-3:-1]
        stack = [weight.reshape(replicas, *weight.shape[-3:]) for weight in weights]
        rows = torch.cat([weight.mT.flatten(1, 2) for weight in stack], 1)  # [R, N, D]: every filter's every part
        of_part, place = _parts(stack)
        # [R, B, N]: the gradient of each part in each text, and the number of the word that it met
        g, index = (t.reshape(replicas, texts, -1)[..., of_part] for t in (g, index))
        text = torch.arange(replicas * texts, device=g.device).reshape(replicas, texts, 1)
        met = index + place + words * text
        of_rows = _sums(vectors.reshape(-1, vectors.shape[-1]), met.mT.flatten(), texts, g.mT.flatten())
        sizes = [weight.shape[1] * weight.shape[3] for weight in stack]
        of_weights = [
            part.unflatten(1, (weight.shape[1], -1)).mT.reshape(own.shape)
            for part, weight, own in zip(of_rows.unflatten(0, rows.shape[:2]).split(sizes, 1), stack, weights, strict=True)
        ]
        if not of_vectors:
            return g.new_empty(0), *of_weights
        ordered, order = met.flatten().sort(stable=True)
        first = torch.searchsorted(ordered, torch.arange(replicas * texts * words, device=g.device))
        part = order % len(place) + len(place) * (order // (texts * len(place)))
        sums = torch.embedding_bag(rows.flatten(0, 1), part, first, False, 0, False, g.flatten()[order])[0]
        return sums.reshape(vectors.shape), *of_weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Parts) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        raise RuntimeError("the maximum over time has first derivatives only")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], of_vectors: bool, *inputs: Tensor) -> tuple[Parts, Any]:
        found: Parts = _Gradients.apply(of_vectors, *_with_replicas(info.batch_size, in_dims[1:], inputs))
        return found, tuple(0 if t.numel() else None for t in found)


def _sums(table: Tensor, rows: Tensor, each: int, weights: Tensor) -> Tensor:
    """The weighted sum of every ``each`` rows of the table."""
    first = torch.arange(0, len(rows), each, device=rows.device)
    return torch.embedding_bag(table, rows, first, False, 0, False, weights)[0]


def _parts(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of every part of every filter ``[R, F, D, W]``: the number of its filter and its place in the window."""
    filters, places, before = [], [], 0
    for weight in weights:
        own, width = weight.shape[1], weight.shape[3]
        filters.append(torch.arange(before, before + own, device=weight.device)[:, None].expand(own, width).flatten())
        places.append(torch.arange(width, device=weight.device).repeat(own))
        before += own
    return torch.cat(filters), torch.cat(places)


def _with_replicas(size: int, in_dims: tuple[int | None, ...], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with one more axis of replicas in front."""
    every = zip(inputs, in_dims, strict=True)
    return [t.expand(size, *t.shape) if at is None else t.movedim(at, 0) for t, at in every]
