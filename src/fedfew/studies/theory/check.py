"""One statement put to the test, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HOLDS, FAILS = "holds", "does not hold"


@dataclass(frozen=True)
class Check:
    """A statement of the paper as it is printed, as it holds, and the cases that both were tried on."""

    name: str
    source: str  # where the paper says it
    printed: str  # what it says
    verdict: str  # on what is printed: HOLDS, FAILS, or in words
    violations: int  # cases in which what is printed is not so
    corrected: str  # what holds; "" where nothing need be corrected
    holds: bool  # did the corrected statement hold in every case (and did the counter-examples to the printed one do their work)?
    margin: float  # the smallest distance to the bound over the cases; ≥ 0, up to rounding, where it holds
    cases: int
    numbers: dict[str, Any] = field(default_factory=dict)  # what else was measured
