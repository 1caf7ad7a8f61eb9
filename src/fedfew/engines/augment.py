"""Random flips and crops with counted randomness, so that all engines train on the same images.

The draw for an image is a hash of (the replica's key for this epoch, the image's position in the epoch).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.config import Augment, LocalTraining
from fedfew.engines import mixup
from fedfew.federation import Samples, as_input
from fedfew.models.image_shape import check_channels_first

PADDING = 4  # pixels on every side, of which a crop of the old size is taken


def check(training: LocalTraining, samples: Samples) -> None:
    """Refuse, naming the setting, what is not for these samples."""
    mixup.check(training.mixup, samples)
    augment = training.augment
    pixels = samples.x.dtype == torch.uint8 or samples.x.is_floating_point()
    if augment != "none" and not (samples.x.ndim == 4 and pixels):
        raise ValueError(
            f"augment is {augment!r}, which is for images of shape [channels, height, width], but these samples are "
            f"{list(samples.x.shape[1:])} of {samples.x.dtype}"
        )
    if augment != "none":
        check_channels_first(samples.x.shape[1:], f"augment {augment!r}")


def moves(augment: Augment, key: Tensor, position: Tensor) -> Tensor:
    """``[…, B, 3]``, int32, of a replica with ``key[…]``: whether the image at each position ``[B]`` of the epoch is mirrored (1
    or 0), and by how many rows and columns its window is shifted."""
    draw = random_streams.count(key[..., None], position)
    mirrored = random_streams.uniform(draw, 0) >= 0.5
    shifts = [_shift(draw, 1), _shift(draw, 2)] if augment == "crop-flip" else [torch.zeros_like(draw)] * 2
    return torch.stack([mirrored, *shifts], -1).to(torch.int32)


def moved(x: Tensor, moves: Tensor, black: float) -> Tensor:
    """Images ``x[…, B, C, H, W]`` moved so; what comes from outside an image is black."""
    height, width = x.shape[-2:]
    mirrored, down, right = (part[..., None] for part in moves.long().unbind(-1))  # […, B, 1]
    row, column = (torch.arange(size, device=x.device) for size in (height, width))
    row, column = row + down, torch.where(mirrored == 1, width - 1 - column, column) + right
    inside = _within(row, height)[..., :, None] & _within(column, width)[..., None, :]
    at = row.clamp(0, height - 1)[..., :, None] * width + column.clamp(0, width - 1)[..., None, :]
    pixels = x.flatten(-2).gather(-1, at.flatten(-2)[..., None, :].expand(*x.shape[:-2], -1))
    return pixels.view(x.shape).where(inside[..., None, :, :], black)


def black(samples: Samples) -> float:
    """What a model sees of a stored 0, which is what images are padded with."""
    return float(as_input(torch.zeros(1, dtype=samples.x.dtype), samples.pixels))


def _shift(draw: Tensor, stream: int) -> Tensor:
    """A whole number of pixels from −PADDING to PADDING, all alike."""
    return (random_streams.uniform(draw, stream) * (2 * PADDING + 1)).long() - PADDING


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)
