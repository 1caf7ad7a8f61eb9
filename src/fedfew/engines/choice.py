"""The choice of an engine: the one named, or the fastest in a short trial."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from dataclasses import replace

import torch
from torch import nn

from fedfew.config import LocalTraining
from fedfew.engines.base import REMEDY, Engine, UnsupportedModuleError
from fedfew.engines.memory import clients_that_fit
from fedfew.engines.packed import Packed, current
from fedfew.engines.sequential import Sequential
from fedfew.engines.stacked.engine import Stacked
from fedfew.engines.threaded import Threaded
from fedfew.federation import Samples
from fedfew.local import LocalEpochs
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
    tried: Engine | None = None
    member = current()
    if name == "auto":
        work = _kind_of_work(module, training, samples, models)
        fastest = _fastest if member is None else member.pack.shared  # runs of a pack train together: the first trial counts
        work = work if member is None else "trial"
        if work not in fastest:
            tried = _sure_stack(module, training, seed, samples, models) if _on_gpu(samples) else None
            fastest[work] = ("stacked", tried.why) if tried else _trial(module, training, seed, samples, models)
        name, why = fastest[work]
    packed = member is not None and name == "stacked" and Packed.takes(module)
    engine = Packed(member, module, training, seed) if packed and member else tried or ENGINES[name](module, training, seed)
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
    The engines take turns and the least time of each counts, because other work on the machine makes single times longer. Of
    engines that are about as fast, it is always the same one.

    Long steps are arithmetic, of which every model has as much: they are tried with one model. On a CPU a stack cannot shorten
    them, and on a single core threads can for images alone, by their layout: else these are not tried. An engine far behind in
    its first pass gets no other.
    """
    plain = Sequential(module, training, seed)
    one_client = _least_of_two(plain, samples, models=1)
    arithmetic = one_client > LONG
    models = 1 if models * one_client > LONG else models
    if models > 1:
        one_client = _least_of_two(plain, samples, models)
    names = _worth_trying(samples, arithmetic)
    if not names:
        return "sequential", f"two steps of a client take {_time(one_client)}, and on one core other engines cannot shorten them"
    few = min(len(samples.count), max(2, int(TRIAL_SECONDS / one_client)))
    seconds = {"sequential": few * one_client} if one_client > TRIAL_SECONDS else {}
    refused = "" if "stacked" in names else "; a stack, which cannot shorten steps this long, was not tried"
    tried: dict[str, Engine] = {}
    for name in names:
        try:
            engine = ENGINES[name](module, training, seed)
            took = _seconds(engine, samples, models, few)  # the first time it records, or starts its threads
            if isinstance(engine, Stacked):
                engine.rows.check(samples)  # of all clients
        except UnsupportedModuleError as error:
            refused = f"; {str(error).removesuffix(REMEDY)}"
            continue
        if took > FAR_BEHIND * seconds.get("sequential", math.inf):
            seconds[name] = took
        else:
            tried[name] = engine
    if "sequential" not in seconds:
        tried["sequential"] = plain
    seconds |= _in_turns(tried, samples, models, few)
    least = min(seconds.values())
    name = next(name for name in PREFERRED if seconds.get(name, math.inf) <= ALIKE * least)
    times = ", ".join(f"{other} {_time(s)}" for other, s in sorted(seconds.items(), key=lambda item: item[1]))
    found = "the fastest" if seconds[name] == least else f"within {ALIKE - 1:.0%} of the fastest"
    return name, f"{found} in a trial with {few} clients ({times}){refused}"


def _worth_trying(samples: Samples, arithmetic: bool) -> list[str]:
    """The engines besides the sequential one; arithmetic: steps are long."""
    if _on_gpu(samples) or not arithmetic:  # on a GPU the number of cores does not matter
        return ["stacked", "threaded"]
    images = samples.x.ndim == 4  # [N, channels, height, width]
    return ["threaded"] if images or torch.get_num_threads() > 1 else []


def _in_turns(tried: dict[str, Engine], samples: Samples, models: int, clients: int) -> dict[str, float]:
    """The least seconds of each engine."""
    seconds, spent = dict.fromkeys(tried, math.inf), 0.0
    for turn in range(TURNS):
        if turn and spent > len(tried) * TRIAL_SECONDS:
            break
        for name, engine in tried.items():
            took = _seconds(engine, samples, models, clients)
            seconds[name], spent = min(took, seconds[name]), spent + took
    return seconds


def _sure_stack(module: nn.Module, training: LocalTraining, seed: int, samples: Samples, models: int) -> Stacked | None:
    """The stacked engine, if it must be the fastest on a GPU: it takes less time than one replica after another would take to
    start its operations. Then no other is tried, and cuDNN, which only others need, is not loaded."""
    batch = training.batch_size
    try:
        stack = Stacked(module, training, seed)
        clients = min(MOST_TRIED, clients_that_fit(stack, samples, 4 * models))  # little memory, should others be tried as well
        least = min(_seconds(stack, samples, models, clients) for _ in range(3))  # the first two may record and capture
        stack.rows.check(samples)  # of all clients
    except UnsupportedModuleError:
        return None
    steps = sum(-(-min(count, 2 * batch) // batch) for count in samples.count[:clients].tolist())
    starting = steps * models * stack.differentiation.operations * _starting(samples.y.device)
    stack.why = (
        f"which takes {_time(least)} for the first steps of {clients} clients: less than the {_time(starting)} or more that one "
        "replica after another takes to start its operations, so no other engine was tried"
    )
    return stack if least < starting else None


def _starting(device: torch.device) -> float:
    """Seconds that it takes here to start an operation or its gradient: one that does next to nothing."""
    number, x = 100, torch.ones(1, device=device, requires_grad=True)

    def seconds() -> float:
        begin, y = time.perf_counter(), x
        for _ in range(number):
            y = y.relu()
        torch.autograd.grad(y, x)
        return time.perf_counter() - begin

    return min(seconds() for _ in range(5)) / (2 * number)


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


TRIAL_SECONDS = 0.1  # of sequential work that all are tried on: many clients where steps are short, two where they are long
LONG = 0.2  # seconds of two sequential steps; of one model, before whose arithmetic a step takes about a hundredth of that
FAR_BEHIND = 3.0  # times the sequential engine; a first pass, which records, was up to 2.7 times as long as a second one
TURNS = 6  # that the engines take, fewer where steps are long
MOST_TRIED = 32  # clients that a stack on a GPU is tried on
ALIKE = 1.15  # times the least: the engine that is preferred is taken
PREFERRED = ("threaded", "stacked", "sequential")  # convolutions on a CPU are where they are alike


def _least_of_two(engine: Engine, samples: Samples, models: int) -> float:
    """Seconds of one client; the first time may load code."""
    return min(_seconds(engine, samples, models, clients=1) for _ in range(2))


def _seconds(engine: Engine, samples: Samples, models: int, clients: int) -> float:
    """Seconds of one local epoch, of at most two batches, for the first clients."""
    first = torch.arange(min(clients, len(samples.count)))
    few, most = samples.take(first), 2 * engine.training.batch_size
    few = replace(few, count=few.count.clamp_max(most), longest=min(few.longest, most))
    state: Tree = {k: v.to(samples.y.device) for k, v in replica_state(engine.module).items()}
    params = tree_map(lambda t: t.expand(len(first), models, *t.shape), state)
    one_core = samples.y.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if one_core else time.perf_counter  # processor time is not that of others on the core
    _wait(samples)
    begin = clock()
    with engine.within_a_round():
        engine.train(LocalEpochs(params, few, first, 0))
    _wait(samples)
    return clock() - begin


def _wait(samples: Samples) -> None:
    if samples.y.is_cuda:
        torch.cuda.synchronize(samples.y.device)


def _on_gpu(samples: Samples) -> bool:
    return bool(samples.y.is_cuda)
