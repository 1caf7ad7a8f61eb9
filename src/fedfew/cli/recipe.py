"""The recipe of ``fedfew run`` and ``fedfew compare`` where none is named, and ``--protocol``.

A data set known by name is trained with the recipe "strong"; a user's own data with "plain", since nothing is known about them.
A protocol brings the paper's settings instead. Whatever a flag or a file sets, wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedfew.config import STRONG
from fedfew.training.settings import RECOMMENDED, Settings

ProtocolFlag = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="The paper's settings, with the recipe plain: fair (as the paper states them) or published (as its code has them).",
        show_default=False,
    ),
]
DEFAULT = "strong for a data set known by name, plain for your own data"


def explicit(given: Mapping[str, Any], *files: Mapping[str, Any]) -> dict[str, Any]:
    """What the files and, above them, the flags set; ``method`` is a mapping with its name."""
    values: dict[str, Any] = {}
    for layer in (*files, given):
        values |= {str(name).replace("-", "_"): value for name, value in layer.items()}
    method = values.get("method", Settings.method)
    return values | {"method": dict(method) if isinstance(method, Mapping) else {"name": method}}


def below(protocol: str | None, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration below all others: what the protocol or, where there is none, the default recipe sets."""
    if protocol is None:
        return {"recipe": "strong" if explicit.get("dataset", Settings.dataset) in RECOMMENDED else "plain"}
    changed = _changed(protocol, explicit)
    return {"recipe": "plain"} | {name: value for name, value in changed.items() if name != "method"}


def method(protocol: str | None, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration above the others: the method, under the protocol published by its preset."""
    return {name: value for name, value in _changed(protocol, explicit).items() if name == "method"}


def line(settings: Settings, protocol: str | None, explicit: Mapping[str, Any]) -> str | None:
    """One line about the recipe, where the user has not decided it all."""
    if protocol is not None:
        changed = [f"{name} {value}" for name, value in below(protocol, explicit).items() if name != "recipe"]
        presets = ["the methods' published presets"] if protocol == "published" else []
        return f"protocol {protocol}: {', '.join([f'recipe {settings.recipe}', *presets, *changed])}"
    if "recipe" in explicit or all(name in explicit for name in STRONG):
        return None
    if settings.recipe == "plain":
        return "recipe plain, as for all data of your own; --recipe strong sets label prior, server momentum and a mixture"
    return f"recipe strong: {', '.join(in_words(settings))}; --recipe plain or --protocol published|fair for the paper's"


def in_words(settings: Settings) -> list[str]:
    """The parts of the recipe "strong" that are in effect."""
    optimizer = settings.server_optimizer
    parts = {
        "label prior": settings.label_prior == "client",
        f"server {optimizer} {settings.server_momentum:g}": optimizer != "none",
        f"average of the server's models over rounds ({settings.server_average:g})": settings.server_average > 0,
        "mixture of the models": settings.serve == "mixture",
        f"FedFew's μ falling to {settings.smoothing_end:g} of itself": settings.smoothing_end < 1,
        f"FedFew's losses checked on {100 * settings.check_share:g} % of the training samples": settings.check_share > 0,
        f"{settings.augment} augmentation": settings.augment != "none",
    }
    return [part for part, in_effect in parts.items() if in_effect]


def _changed(protocol: str | None, explicit: Mapping[str, Any]) -> dict[str, Any]:
    """What a protocol changes in the settings that suit the data set, but for those set explicitly."""
    from fedfew.studies import protocol as protocols
    from fedfew.studies.layers import with_data_defaults

    if protocol is None:
        return {}
    if protocol == protocols.TUNED:
        raise ValueError("--protocol tuned chooses hyperparameters from a grid: that needs a study ('fedfew study new NAME')")
    if protocol not in protocols.PROTOCOLS:
        raise ValueError(f"--protocol must be published or fair, not {protocol!r}")
    before = with_data_defaults(dict(explicit))
    after, _ = protocols.apply(protocol, before)
    different = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return {name: value for name, value in different.items() if name == "method" or name not in explicit}
