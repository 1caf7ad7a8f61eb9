"""What ``published`` changes in a study that states its settings as the paper does. ``fair`` and ``tuned`` change nothing stated;
under ``tuned`` hyperparameters come from a grid (:mod:`fedfew.studies.tuning`).

Each quirk of the published experiments is a switch with a name and a reason, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedfew.studies.measures import published_score

PUBLISHED, FAIR, TUNED = "published", "fair", "tuned"
PROTOCOLS = (PUBLISHED, FAIR, TUNED)
DRAWN_ALPHA = "0.1"  # whatever α is asked for, the published generator draws with this one

Changed = tuple[dict[str, Any], str]  # the settings after a switch, and what it changed, in words ("": nothing)


@dataclass(frozen=True)
class Switch:
    """One quirk: ``turn`` takes a run's stated settings to those it was published with."""

    name: str
    why: str
    turn: Callable[[dict[str, Any]], Changed]


def _dirichlet(settings: dict[str, Any]) -> Changed:
    stated = settings.get("partition") or ""
    how, colon, rest = stated.partition(":")
    if how != "dirichlet":
        return settings, ""
    _, plus, shift = rest.partition("+")
    drawn = f"dirichlet-published:{DRAWN_ALPHA}{plus}{shift}"
    return settings | {"partition": drawn}, f"{drawn} (stated {stated if colon else 'dirichlet:0.5'})"


def _preset(settings: dict[str, Any]) -> Changed:
    method = settings["method"]
    if "published" in method:  # a row may set the form itself
        return settings, ""
    return settings | {"method": {"published": True} | method}, "the method's published preset"


def _log_probabilities(settings: dict[str, Any]) -> Changed:
    if settings.get("model") != "textcnn":
        return settings, ""
    return settings | {"model": "textcnn-published"}, "textcnn-published (stated textcnn)"


def _statistics(settings: dict[str, Any]) -> Changed:
    if settings.get("model") != "resnet18" or "batch_norm" in settings:
        return settings, ""
    return settings | {"batch_norm": "local-statistics"}, "batch_norm local-statistics"


SWITCHES: tuple[Switch, ...] = (
    Switch(
        "dirichlet",
        "the option for α never reaches the generator, which draws with 0.1, gives nothing to a client that has N/M samples, and "
        "draws again until every client has 40, or half of N/M where that is less",
        _dirichlet,
    ),
    Switch(
        "presets",
        "every baseline ran on the code's defaults: penalties of weight 0 or without gradient, K copies of one initialisation",
        _preset,
    ),
    Switch(
        "log-probabilities",
        "TextCNN ends in log_softmax before cross-entropy takes its own; the same but for rounding",
        _log_probabilities,
    ),
    Switch("statistics", "only parameters travel: BatchNorm's running statistics stay with each client", _statistics),
)


def apply(protocol: str, settings: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A run's settings under a protocol, and how they differ from those stated.

    settings: as in a configuration file, ``method`` a mapping with its name.
    """
    changes = []
    for switch in SWITCHES if protocol == PUBLISHED else ():
        settings, change = switch.turn(settings)
        if change:
            changes.append(change)
    return settings, tuple(changes)


def rounds_to_run(protocol: str, method: str, rounds: int) -> int:
    """The published code scores FedFew's last models after one more local epoch: what is adapted in the round after the last."""
    return rounds + 1 if protocol == PUBLISHED and published_score(method) == "adapted" else rounds
