"""Reads back the arrays of a page's document, as ``array.js`` does in a browser."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from fedfew.report.page.pack import Packed


def unpacked(packed: Packed) -> NDArray[np.float64]:
    """What was packed, NaN where there is no value."""
    codes = np.frombuffer(base64.b64decode(packed["data"]), f"<{packed['type']}").reshape(packed["shape"])
    values = codes.astype(np.float64) * packed["scale"]
    return values if packed["type"] == "f4" else np.where(codes == np.iinfo(codes.dtype).max, np.nan, values)
