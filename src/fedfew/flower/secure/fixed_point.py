"""Real numbers as whole numbers modulo 2⁶⁴.

A number x in [−clip, clip] becomes round(x / step); sums of ``parties`` such numbers stay below 2⁶³ and cannot wrap around, so
the decoded sum is the true sum but for the rounding: see :attr:`Ring.error`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.uint64]
FEWEST = 3  # parties: of two, each would learn the other's numbers from the sum
FINEST = 2**48  # levels on either side of 0: more would be lost in float64's 53 bits


@dataclass(frozen=True)
class Ring:
    """Fixed-point numbers that so many parties can add up."""

    clip: float  # larger numbers are cut to it
    parties: int

    def __post_init__(self) -> None:
        if not 1e-9 <= self.clip <= 1e9:
            raise ValueError(f"clip must be a number from 1e-9 to 1e9, not {self.clip}")
        if not 1 <= self.parties < 2**31:
            raise ValueError(f"parties must be a whole number from 1 to 2³¹ − 1, not {self.parties}")

    @property
    def levels(self) -> int:
        """How many steps there are from 0 to ``clip``."""
        return min(FINEST, (2**63 - 1) // self.parties)

    @property
    def step(self) -> float:
        return self.clip / self.levels

    @property
    def error(self) -> float:
        """The most by which a decoded sum is off the sum of the (clipped) numbers: half a step a party, and an eighth of a step
        a party for what float64 rounds on the way in and out."""
        return 0.625 * self.step * self.parties

    def encode(self, values: NDArray[Any]) -> Whole:
        numbers = values.astype(np.float64, copy=False)
        if not np.isfinite(numbers).all():
            raise ValueError("an update with numbers that are not finite cannot be masked")
        whole = np.rint(np.clip(numbers, -self.clip, self.clip) / self.step)
        return np.clip(whole, -self.levels, self.levels).astype(np.int64).view(np.uint64)

    def clipped(self, values: NDArray[Any]) -> int:
        """How many of the numbers are too large."""
        return int((np.abs(values) > self.clip).sum())

    def decode(self, total: Whole) -> NDArray[np.float64]:
        """The real numbers that a sum of encoded ones stands for."""
        return total.view(np.int64).astype(np.float64) * self.step
