"""Which engine: the one asked for, or the one that a short trial shows to be the fastest here."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import nn

from fedfew.config import LocalTraining
from fedfew.engines.base import REMEDY, Engine, UnsupportedModuleError
from fedfew.engines.packed import Packed, current
from fedfew.engines.sequential import Sequential
from fedfew.engines.stacked.engine import Stacked
from fedfew.engines.threaded import Threaded
from fedfew.federation import Samples
from fedfew.local import cross_entropy
from fedfew.models.state import replica_state
from fedfew.stack import Tree, tree_map

ENGINES: dict[str, type[Engine]] = {"stacked": Stacked, "threaded": Threaded, "sequential": Sequential}
NAMES = ", ".join(("auto", *list(ENGINES)[:-1])) + f" or {list(ENGINES)[-1]}"


def make(name: str, module: nn.Module, training: LocalTraining, seed: int, samples: Samples, models: int) -> Engine:
    """The engine called ``name``; ``"auto"`` is the fastest one in a trial on the first clients of ``samples``.

    The trial is made once a process for each kind of work: the same module on samples and batches of the same shape.
    """
    if name not in (*ENGINES, "auto"):
        raise ValueError(f"engine must be {NAMES}, not {name!r}")
    why = ""
    member = current()
    if name == "auto":
        work = _kind_of_work(module, training, samples, models)
        fastest = _fastest if member is None else member.pack.shared  # runs of a pack train together: the first trial counts
        work = work if member is None else "trial"
        if work not in fastest:
            fastest[work] = _trial(module, training, seed, samples, models)
        name, why = fastest[work]
    packed = member is not None and name == "stacked" and Packed.takes(module)
    engine = Packed(member, module, training, seed) if packed and member else ENGINES[name](module, training, seed)
    engine.why = why
    return engine


_fastest: dict[Hashable, tuple[str, str]] = {}  # engines by kind of work, as trials showed, and what these showed


def _kind_of_work(module: nn.Module, training: LocalTraining, samples: Samples, models: int) -> Hashable:
    shapes = tuple((path, t.shape, t.dtype) for path, t in replica_state(module).items())
    layers = (type(module), str(module), shapes)
    data = (len(samples.count), samples.longest, samples.x.shape[1:], samples.x.dtype, str(samples.x.device))
    return (layers, replace(training, lr=1.0, rounds=1), data, models, str(samples.y.device), torch.get_num_threads())


def _trial(module: nn.Module, training: LocalTraining, seed: int, samples: Samples, models: int) -> tuple[str, str]:
    """The name of the engine that is fastest here, and why it was chosen.

    In the stack clients share what a step costs before any arithmetic, and a client alone finds its model in the cache. So all
    are tried on as many clients as a fraction of a second allows; where that is not even one, two are taken to be twice as long.
    """
    plain = Sequential(module, training, seed)
    one_client = _seconds(plain, samples, models, clients=1, runs=2)
    few = min(len(samples.count), max(2, int(TRIAL_SECONDS / one_client)))
    long = one_client > TRIAL_SECONDS
    seconds = {"sequential": few * one_client if long else _seconds(plain, samples, models, clients=few, runs=1)}
    if not samples.y.is_cuda:  # a GPU takes no notice of how many cores hand it work
        seconds["threaded"] = _seconds(Threaded(module, training, seed), samples, models, clients=few, runs=2)
    refused = ""
    try:
        seconds["stacked"] = _seconds(Stacked(module, training, seed), samples, models, clients=few, runs=2)
    except UnsupportedModuleError as error:
        refused = f"; {str(error).removesuffix(REMEDY)}"
    name = min(seconds, key=seconds.__getitem__)
    times = ", ".join(f"{other} {1000 * s:.3g} ms" for other, s in sorted(seconds.items(), key=lambda item: item[1]))
    return name, f"the fastest in a trial with {few} clients ({times}){refused}"


TRIAL_SECONDS = (
    0.25  # of sequential work that the others are tried on: many clients where steps are short, two where they are long
)


def _seconds(engine: Engine, samples: Samples, models: int, clients: int, runs: int) -> float:
    """Seconds of the last of some runs of one local epoch, of at most two batches, for the first clients."""
    first = torch.arange(min(clients, len(samples.count)))
    few, most = samples.take(first), 2 * engine.training.batch_size
    few = replace(few, count=few.count.clamp_max(most), longest=min(few.longest, most))
    state: Tree = {k: v.to(samples.y.device) for k, v in replica_state(engine.module).items()}
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
