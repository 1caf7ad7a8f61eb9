"""Words of messages: the nearest right word for a wrong one, and numbers with their nouns."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

ELSEWHERE = {  # what other libraries call a setting
    "algorithm": "method",
    "fraction_fit": "participation",
    "fraction_train": "participation",
    "global_rounds": "rounds",
    "join_ratio": "participation",
    "k": "models",
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "num_clusters": "models",
    "num_models": "models",
}


def closest(word: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant, if one is near. Names may be flags, for a word that is one."""
    known = list(known)
    elsewhere = ELSEWHERE.get(word.removeprefix("--").replace("-", "_").lower())
    here = f"--{elsewhere}" if word.startswith("--") else elsewhere
    return here if here in known else next(iter(difflib.get_close_matches(word, known, n=1)), None)


def unknown(kind: str, word: str, known: Iterable[str]) -> ValueError:
    """An error saying that there is no such ``kind``, which one was probably meant, and which there are."""
    known = list(known)
    near = closest(word, known)
    meant = f"; did you mean {near!r}?" if near else ""
    return ValueError(f"there is no {kind} {word!r}{meant} (there are: {', '.join(known) or 'none'})")


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def number(value: float, how: str) -> str:
    """A number in this format; –, ∞ or −∞ where it is not finite."""
    if math.isnan(value):
        return "–"
    return format(value, how) if math.isfinite(value) else "∞" if value > 0 else "−∞"
