"""The paper's CNN, and a small one, for images of any size ≥ 16 and any number of channels."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fedfew.models.image_shape import check_channels_first


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5×5 convolutions (32, 64) without padding, each with ReLU and 2×2 pooling, then 512 hidden units.

    Pooling comes before ReLU: the maximum of what ReLU leaves is what ReLU leaves of the maximum, at a quarter of the work.
    """
    return _cnn(shape, classes, 32, 64, 512)


def cnn_wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same, 1.75 times as wide: about three times the parameters and the work, as much as three models."""
    return _cnn(shape, classes, 56, 112, 896)


def cnn_small(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same with 8 and 16 channels and 64 hidden units: for differential privacy, whose noise grows with the parameters."""
    return _cnn(shape, classes, 8, 16, 64)


def lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same with 6 and 16 filters, then 120 and 84 hidden units: LeNet-5 as PyTorch's tutorial on CIFAR-10 has it."""
    return _cnn(shape, classes, 6, 16, 120, 84)


def _cnn(shape: tuple[int, ...], classes: int, first: int, second: int, *hidden: int) -> nn.Module:
    check_channels_first(shape, "cnn")
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise ValueError(f"cnn needs images of shape [channels, height ≥ 16, width ≥ 16], not {list(shape)}")
    channels, height, width = shape
    sizes = (second * _left(height) * _left(width), *hidden)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        *layers,
        nn.Linear(sizes[-1], classes),
    )


def _left(size: int) -> int:
    return ((size - 4) // 2 - 4) // 2
