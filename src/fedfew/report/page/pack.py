"""Arrays as short text: whole numbers of one, two or four bytes (or floats), little-endian, in base64.

The largest code of a whole number means "no value". ``array.js`` of the page reads them back.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Packed = dict[str, Any]  # shape, type ("u1", "u2", "u4", "f4"), scale (value = code × scale), data


def fractions(values: ArrayLike) -> Packed:
    """Accuracies and the like, in 0 … 1, to four digits."""
    return _coded(values, "u2", 1e-4)


def shares(values: ArrayLike) -> Packed:
    """Numbers in 0 … 1 that are only looked at: to a quarter of a percent, in one byte."""
    return _coded(values, "u1", 1 / 254)


def whole(values: ArrayLike) -> Packed:
    """Whole numbers ≥ 0 in as few bytes as hold the largest; −1 and NaN: none."""
    array = np.asarray(values, dtype=np.float64)
    largest = np.nanmax(array, initial=0)
    return _coded(np.where(array < 0, np.nan, array), next(t for t in ("u1", "u2", "u4") if largest < np.iinfo(t).max), 1)


def floats(values: ArrayLike) -> Packed:
    """Any numbers, to seven digits."""
    return _packed(np.asarray(values, dtype="<f4"), 1)


def _coded(values: ArrayLike, kind: str, scale: float) -> Packed:
    array = np.asarray(values, dtype=np.float64)
    none = np.iinfo(kind).max
    codes = np.where(np.isnan(array), none, np.clip(np.rint(array / scale), 0, none - 1))
    return _packed(codes.astype(f"<{kind}"), scale)


def _packed(array: NDArray[Any], scale: float) -> Packed:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"shape": list(array.shape), "type": array.dtype.str[-2:], "scale": scale, "data": data}
