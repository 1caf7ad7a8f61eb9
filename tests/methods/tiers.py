"""Which tests a method goes through in ``make test``, and which in ``make test-all`` alone.

One of each kind goes through all shared tests in ``make test``, with its default settings: few models, one model, a personal
model, personal layers, a server that holds all clients' models, clusters. The others are built from the same parts: there they
go through their own tests and the recorded outcomes, and through all the rest in ``make test-all``, as other settings do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from fedfew.methods import METHODS

FIRST = frozenset({"fedfew", "fedavg", "ditto", "fedrep", "fedamp", "ifca"})
OF_THE_PAPER = FIRST | {"fedprox", "fedmtl", "apfl", "local"}

BY_REFERENCE = frozenset({"fedbabu", "fedala", "fedpac", "fedfomo"})
"""Later methods whose own tests have no step by hand: they agree with their float64 reference in ``make test``, too."""

ON_A_NETWORK = [*sorted(OF_THE_PAPER), "scaffold", "fedem", "fedpac", "cfl", "knnper"]
"""Methods that run in Flower's simulation: the ten of the paper, and one of each kind of message and state that later ones
brought. All methods run on a network in memory (tests/flower/test_server_loop.py)."""

BETWEEN_NODES = ["fedfew", "ditto"]
"""Methods that run between real nodes, where each message starts a process: few models, and sites that keep one of their own."""


def tiered(cases: Iterable[Any] = METHODS) -> list[Any]:
    """The cases of a parametrised test, each a method's name or a tuple of it and what is set; slow ones are marked."""
    return [case if _comes_first(case) else pytest.param(*_values(case), marks=pytest.mark.slow) for case in cases]


def _comes_first(case: Any) -> bool:
    _, *settings = _values(case)
    return _method(case) in FIRST and not any(settings)


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def _method(case: Any) -> str:
    name = _values(case)[0]
    return name.name if hasattr(name, "name") else str(name).partition(":")[0]
