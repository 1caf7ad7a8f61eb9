"""A seed drawn out into a mask: the key stream of ChaCha20, read as numbers modulo 2⁶⁴."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedfew.flower.secure.fixed_point import Whole

SEED = 32  # bytes
PIECE = 1 << 16  # numbers drawn at a time: they stay in the processor's cache
LONGEST = 2**32 * 64 // 8  # numbers before ChaCha20's counter is used up


def add(target: Whole, seed: bytes, subtract: bool = False) -> None:
    """Add the seed's mask to ``target``, or take it away, in place. A seed must serve one purpose only."""
    if len(seed) != SEED:
        raise ValueError(f"a seed has {SEED} bytes, not {len(seed)}")
    if target.ndim != 1 or len(target) > LONGEST:
        raise ValueError(f"a mask has one axis and at most {LONGEST} numbers, not shape {list(target.shape)}")
    drawing = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    zeros = bytes(8 * PIECE)
    for begin in range(0, len(target), PIECE):
        part = target[begin : begin + PIECE]
        mask = np.frombuffer(drawing.update(zeros[: 8 * len(part)]), dtype="<u8")
        if subtract:
            part -= mask
        else:
            part += mask
