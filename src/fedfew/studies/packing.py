"""Which runs of a study are made in one stack (:mod:`fedfew.engines.packed`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import fields

from fedfew.training.settings import Settings

ON_A_GPU = 10  # runs of a pack, unless given
# What runs of a pack may differ in. All else decides what a client's step is, or which data set and model it is about.
OWN = {
    *("seed", "data_seed", "partition", "clients", "method", "method_settings", "rounds", "participation"),
    *("aggregator", "trim", "assumed_attackers", "norm_bound", "attack", "attackers", "dp_noise", "dp_clip", "dp_delta"),
    *("server_optimizer", "server_lr", "server_momentum", "server_average", "serve", "temperature"),
    *("smoothing_end", "check_share", "smoothing_spread", "restart_unused"),
    *("early_stopping", "keep", "best_by", "score_every", "checkpoint_every", "chunk", "recipe"),
}


def default_size(device: str) -> int:
    """On a GPU, where small stacks leave most of it idle, several runs; on a CPU each run alone."""
    from fedfew.util.devices import device_named

    return ON_A_GPU if device_named(device).type == "cuda" else 1


def pack_of(settings: Settings, tuned: bool = False) -> Hashable | None:
    """Runs with the same one can be made in one stack; None: only alone. tuned: with candidates to choose from."""
    if tuned or settings.engine not in ("auto", "stacked") or not settings.adapters == settings.freeze == "none":
        return None
    own = OWN - {"rounds"} if settings.scheduled else OWN
    return tuple(str(getattr(settings, f.name)) for f in fields(settings) if f.name not in own)


def packed(packs: Mapping[str, Hashable | None], size: int) -> set[str]:
    """The keys of runs that share a stack with others."""
    found = Counter(packs.values())
    return {key for key, pack in packs.items() if size > 1 and pack is not None and found[pack] > 1}


def in_words(runs: int, size: int) -> str | None:
    """How many runs share a stack; None if none do."""
    if runs == 0:
        return None
    return f"{runs} of them in packs of up to {size}: the runs of a pack share one stack, and seconds are each run's share"
