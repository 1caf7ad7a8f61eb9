"""Real numbers as integers modulo 2⁶⁴.

A number x in [−clip, clip] becomes round(x / step); sums of ``clients`` such numbers stay below 2⁶³ and cannot wrap around, so
the decoded sum is the true sum except for rounding: see :attr:`FixedPoint.error`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]
MIN_CLIENTS = 3  # of two, each would learn the other's numbers from the sum
MAX_LEVELS = 2**48  # on either side of 0: more would not fit in float64's 53 bits


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point numbers of which ``clients`` many can be added without overflow."""

    clip: float  # larger numbers are clipped to it
    clients: int

    def __post_init__(self) -> None:
        if not 1e-9 <= self.clip <= 1e9:
            raise ValueError(f"clip must be a number from 1e-9 to 1e9, not {self.clip}")
        if not 1 <= self.clients < 2**31:
            raise ValueError(f"clients must be a whole number from 1 to 2³¹ − 1, not {self.clients}")

    @property
    def levels(self) -> int:
        """How many steps there are from 0 to ``clip``."""
        return min(MAX_LEVELS, (2**63 - 1) // self.clients)

    @property
    def step(self) -> float:
        return self.clip / self.levels

    @property
    def error(self) -> float:
        """A bound on the error of a decoded sum of (clipped) numbers: half a step per client, and an eighth of a step per client
        for rounding in float64."""
        return 0.625 * self.step * self.clients

    def encode(self, values: NDArray[Any]) -> UInt64Array:
        numbers = values.astype(np.float64, copy=False)
        if not np.isfinite(numbers).all():
            raise ValueError("an update with values that are not finite cannot be masked")
        whole = np.rint(np.clip(numbers, -self.clip, self.clip) / self.step)
        return np.clip(whole, -self.levels, self.levels).astype(np.int64).view(np.uint64)

    def clipped(self, values: NDArray[Any]) -> int:
        """How many of the numbers are too large."""
        return int((np.abs(values) > self.clip).sum())

    def decode(self, total: UInt64Array) -> NDArray[np.float64]:
        """The real numbers that a sum of encoded numbers represents."""
        return total.view(np.int64).astype(np.float64) * self.step
