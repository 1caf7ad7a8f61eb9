"""Images are ``[channels, height, width]``; those with channels last would pass for narrow images with many channels."""

from __future__ import annotations

from collections.abc import Sequence

CHANNELS = (1, 3, 4)


def check_channels_first(shape: Sequence[int], what: str) -> None:
    """Refuse samples ``[height, width, channels]``."""
    if len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS:
        raise ValueError(
            f"{what} is for images of shape [channels, height, width], but these samples are {list(shape)}: their channels seem "
            "to come last. Move them to the front (x.transpose(0, 3, 1, 2)); fedfew.data.load does so by itself"
        )
