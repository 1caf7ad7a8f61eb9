"""The bar that :func:`fedfew.train` shows. rich is imported only when there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedfew.training.on_round import OnRound


@contextmanager
def shown(wanted: bool | None, label: str, others: Sequence[OnRound]) -> Iterator[Sequence[OnRound]]:
    """What is to be called after every round: the others, and what shows a bar while the block lasts.

    wanted: None shows one in a terminal or notebook, if no other function is called.
    """
    if not (somebody_is_looking() and not others if wanted is None else wanted):
        yield others
        return
    from rich.console import Console

    from fedfew.training.progress import display

    with display(Console(stderr=True)) as bars:
        yield [*others, bars.run(label)]


def somebody_is_looking() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules
