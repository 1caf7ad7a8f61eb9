"""Masks are key streams of ChaCha20."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography")
from fedfew.flower.secure import keys, mask_stream


def drawn(seed: bytes, size: int) -> np.ndarray:
    target = np.zeros(size, np.uint64)
    mask_stream.add(target, seed)
    return target


def test_a_mask_is_the_chacha20_key_stream_of_rfc_8439() -> None:
    """RFC 8439, appendix A.1, test vector 1: key, nonce and counter all zero."""
    first = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert drawn(bytes(32), 4).tobytes() == first


def test_a_mask_continues_over_chunks_and_can_be_subtracted() -> None:
    seed, size = keys.fresh(), 2 * mask_stream.CHUNK + 17
    whole = drawn(seed, size)
    np.testing.assert_array_equal(drawn(seed, mask_stream.CHUNK + 3), whole[: mask_stream.CHUNK + 3])
    assert len(np.unique(whole)) == size  # pieces do not repeat
    mask_stream.add(whole, seed, subtract=True)
    assert not whole.any()


def test_invalid_masks_are_refused() -> None:
    with pytest.raises(ValueError, match="a seed has 32 bytes, not 31"):
        mask_stream.add(np.zeros(3, np.uint64), bytes(31))
    with pytest.raises(ValueError, match="one axis"):
        mask_stream.add(np.zeros((3, 3), np.uint64), bytes(32))
