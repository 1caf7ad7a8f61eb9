"""ResNet-18 (He et al. 2016) from a random initialisation, with BatchNorm or GroupNorm."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fedfew.models.image_shape import check_channels_first

Norm = Callable[[int], nn.Module]  # channels → the layer that normalises them
GROUPS = 32  # of GroupNorm (Wu and He 2018)


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        same = stride == 1 and channels_in == channels
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), norm(channels))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(y)) + self.shortcut(x)).relu()


class ResNet18(nn.Module):
    """A 7×7 stem, four stages of two blocks with 64, 128, 256 and 512 channels, the mean over the image, a linear layer."""

    def __init__(self, channels: int, classes: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            norm(64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        widths = [64, 64, 128, 256, 512]
        blocks = []
        for stage in range(1, 5):
            blocks.append(Block(widths[stage - 1], widths[stage], 1 if stage == 1 else 2, norm))
            blocks.append(Block(widths[stage], widths[stage], 1, norm))
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 with BatchNorm, as usual."""
    return ResNet18(_channels(shape, "resnet18"), classes, nn.BatchNorm2d)


def resnet18_gn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 with GroupNorm in 32 groups: no statistics that clients could disagree about."""
    return ResNet18(_channels(shape, "resnet18-gn"), classes, lambda channels: nn.GroupNorm(GROUPS, channels))


def _channels(shape: tuple[int, ...], name: str) -> int:
    check_channels_first(shape, name)
    if len(shape) != 3:
        raise ValueError(f"{name} needs images of shape [channels, height, width], not {list(shape)}")
    return shape[0]
