"""A seed expanded into a mask: the key stream of ChaCha20, read as integers modulo 2⁶⁴."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedfew.flower.secure.fixed_point import UInt64Array

SEED_BYTES = 32
CHUNK = 1 << 16  # numbers generated at a time: they stay in the processor's cache
MAX_LENGTH = 2**32 * 64 // 8  # numbers before ChaCha20's counter overflows


def add(target: UInt64Array, seed: bytes, subtract: bool = False) -> None:
    """Add the seed's mask to ``target``, or subtract it, in place. A seed must be used for one mask only."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    if target.ndim != 1 or len(target) > MAX_LENGTH:
        raise ValueError(f"a mask has one axis and at most {MAX_LENGTH} numbers, not shape {list(target.shape)}")
    cipher = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    zeros = bytes(8 * CHUNK)
    for begin in range(0, len(target), CHUNK):
        part = target[begin : begin + CHUNK]
        mask = np.frombuffer(cipher.update(zeros[: 8 * len(part)]), dtype="<u8")
        if subtract:
            part -= mask
        else:
            part += mask
