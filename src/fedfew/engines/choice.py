"""Which engine: the one asked for, or the one that a short trial shows to be faster here."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import nn

from fedfew.engines.base import Engine, LocalTraining, UnsupportedModuleError, cross_entropy
from fedfew.engines.sequential import Sequential
from fedfew.engines.stacked import Stacked
from fedfew.federation import Samples
from fedfew.stack import Tree, tree_map

ENGINES: dict[str, type[Engine]] = {"stacked": Stacked, "sequential": Sequential}


def make(name: str, module: nn.Module, training: LocalTraining, seed: int, samples: Samples, models: int) -> Engine:
    """The engine called ``name``; ``"auto"`` is the faster one in a trial on the first clients of ``samples``."""
    if name in ENGINES:
        return ENGINES[name](module, training, seed)
    if name != "auto":
        raise ValueError(f"engine must be auto, {' or '.join(ENGINES)}, not {name!r}")
    sequential = Sequential(module, training, seed)
    try:
        stacked = Stacked(module, training, seed)
        return stacked if _seconds(stacked, samples, models) < _seconds(sequential, samples, models) else sequential
    except UnsupportedModuleError:
        return sequential


TRIAL_CLIENTS = 4


def _seconds(engine: Engine, samples: Samples, models: int) -> float:
    """Seconds of one local epoch of at most two batches for a few clients, after a first one to warm up."""
    few = samples.take(torch.arange(min(TRIAL_CLIENTS, len(samples.count))))
    most = 2 * engine.training.batch_size
    few = replace(few, count=few.count.clamp_max(most), longest=min(few.longest, most))
    state: Tree = {k: v.to(samples.y.device) for k, v in engine.module.state_dict().items()}
    params = tree_map(lambda t: t.expand(len(few.count), models, *t.shape), state)
    clients = torch.arange(len(few.count))
    seconds = float("inf")
    for _ in range(2):
        if samples.y.is_cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        engine.train(params, few, clients, 0, cross_entropy, {}, 1)
        if samples.y.is_cuda:
            torch.cuda.synchronize()
        seconds = min(seconds, time.perf_counter() - begin)
    return seconds
