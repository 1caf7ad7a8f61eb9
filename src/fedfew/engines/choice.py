"""Which engine: the one asked for, or the one that a short trial shows to be faster here."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import nn

from fedfew.engines.base import Engine, LocalTraining, UnsupportedModuleError, cross_entropy
from fedfew.engines.sequential import Sequential
from fedfew.engines.stacked import Stacked
from fedfew.engines.traced import SEEN_BEFORE
from fedfew.federation import Samples
from fedfew.stack import Tree, tree_map

ENGINES: dict[str, type[Engine]] = {"stacked": Stacked, "sequential": Sequential}


def make(name: str, module: nn.Module, training: LocalTraining, seed: int, samples: Samples, models: int) -> Engine:
    """The engine called ``name``; ``"auto"`` is the faster one in a trial on the first clients of ``samples``.

    One after the other, clients take time in proportion; in the stack they share what a step costs before any arithmetic. So the
    time of one client is compared with the stack's time for as many as a fraction of a second allows.
    """
    if name in ENGINES:
        return ENGINES[name](module, training, seed)
    if name != "auto":
        raise ValueError(f"engine must be auto, {' or '.join(ENGINES)}, not {name!r}")
    sequential = Sequential(module, training, seed)
    one_client = _seconds(sequential, samples, models, clients=1, runs=2)
    few = max(2, min(len(samples.count), int(TRIAL_SECONDS / one_client)))
    try:
        stacked = Stacked(module, training, seed)
        together = _seconds(stacked, samples, models, clients=few, runs=SEEN_BEFORE + 2)
    except UnsupportedModuleError:
        return sequential
    return stacked if together < few * one_client else sequential


TRIAL_SECONDS = 0.25  # of sequential work that the stack is tried on: many clients where steps are short, two where they are long


def _seconds(engine: Engine, samples: Samples, models: int, clients: int, runs: int) -> float:
    """Seconds of the last of some runs of one local epoch, of at most two batches, for the first clients."""
    first = torch.arange(min(clients, len(samples.count)))
    few, most = samples.take(first), 2 * engine.training.batch_size
    few = replace(few, count=few.count.clamp_max(most), longest=min(few.longest, most))
    state: Tree = {k: v.to(samples.y.device) for k, v in engine.module.state_dict().items()}
    params = tree_map(lambda t: t.expand(len(first), models, *t.shape), state)
    seconds = 0.0
    for _ in range(runs):
        _wait(samples)
        begin = time.perf_counter()
        engine.train(params, few, first, 0, cross_entropy, {}, 1)
        _wait(samples)
        seconds = time.perf_counter() - begin
    return seconds


def _wait(samples: Samples) -> None:
    if samples.y.is_cuda:
        torch.cuda.synchronize(samples.y.device)
