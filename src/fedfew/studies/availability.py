"""Which data sets are available, checked before anything runs: a run without data is missing, not failed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedfew.data import DataError
from fedfew.training.from_settings import data_keywords
from fedfew.training.settings import Settings


def missing(runs: Iterable[Settings]) -> dict[str, str]:
    """By data set, why it is not available and how to get it; nothing for those that are."""
    why: dict[str, str] = {}
    for settings in {tuple(getattr(s, name) for name in LOOKED_AT): s for s in runs}.values():
        try:
            _check(settings)
        except (DataError, ValueError) as error:
            why[settings.dataset] = str(error)
    return why


LOOKED_AT = ("dataset", "data_dir", "partition", "client", "group", "label", "input", "size", "tokenizer")


def _check(settings: Settings) -> None:
    """Raise DataError where the data set is neither on this machine nor to be had from the hub."""
    from fedfew.data import cache as decoded
    from fedfew.data.finding import HUB_PREFIX, data_folder, find, nowhere
    from fedfew.data.hub import unreachable
    from fedfew.data.loading import column_choice
    from fedfew.data.prepared import is_prepared
    from fedfew.data.sources import SOURCES
    from fedfew.data.tokens import not_on_hub

    dataset, data_dir = settings.dataset, settings.data_dir
    if settings.tokenizer and not Path(settings.tokenizer).expanduser().exists() and (why := not_on_hub(settings.tokenizer)):
        raise DataError(f"tokenizer: {why}")
    if dataset == "digits" or is_prepared(dataset):
        if dataset != "digits" and not Path(dataset).expanduser().is_file():
            raise DataError(f"there is no prepared federation {dataset}")
        return
    given = data_keywords(settings)
    choice = column_choice(*(given[name] for name in ("partition", "client", "group", "label", "input")))
    found = find(dataset, data_dir, choice, {"size": settings.size})
    if not found.from_hub or decoded.stored_at(found.key, found.name).is_file():
        return
    source = SOURCES.get(dataset)
    hub_id = source.hub if source is not None and source.hub else dataset.removeprefix(HUB_PREFIX)
    reason = unreachable(hub_id)
    if reason is None:
        return
    if source is None:
        raise DataError(f"{dataset}: {reason}")
    raise nowhere(source, data_folder(data_dir), reason)
