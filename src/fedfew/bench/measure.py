"""Measure the ways of doing a workload: seconds, arithmetic a second, memory, and whether the result is right."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from fedfew.bench import flops, machine, memory
from fedfew.bench.contender import ORACLE, ORACLE_ENGINE, Contender, Way
from fedfew.bench.workloads import Workload
from fedfew.federation import Samples
from fedfew.stack import Tree

WARM_UP = 4  # rounds until everything that is recorded or tuned has been; the oracle needs one
WARM_UP_SECONDS = 4.0  # on a CPU a round that takes long gains nothing by being recorded
LONGEST = 10.0  # seconds of a round, one replica after the other; of more, some of the clients are trained
BUDGET = 20.0  # seconds of repeats for a workload, where their number is not given
LEAST_REPEATS, MOST_REPEATS = 3, 9
Tell = Callable[[str], None]


def measure(workload: Workload, ways: list[Way], device: torch.device, repeats: int | None, tell: Tell) -> dict[str, Any]:
    """One workload done in several ways, the oracle first: what it is, and a row of figures for each way.

    The ways take turns, so that a busy machine disturbs them alike; the median of the repeats counts. A way that fails has an
    ``error`` in place of figures, and the others go on.
    """
    samples = workload.draw().to(device)
    per_sample = flops.training_flop(workload.module().to(device), samples)
    flop = flops.round_flop(workload, per_sample)
    rows: dict[Way, dict[str, Any]] = {way: {"engine": way.engine, "precision": way.precision} for way in ways}
    contenders: dict[Way, Contender] = {}
    oracle: Tree = {}
    trial: dict[Way, float] = {}
    for way in ways:
        tell(f"{workload.name}: {way}, warming up")
        try:
            contenders[way], trained, trial[way], rows[way]["peak_bytes"] = _warmed_up(workload, samples, way)
        except (RuntimeError, TypeError, ValueError) as error:
            if way == ORACLE:
                raise
            rows[way]["error"] = str(error).partition("\n")[0]
            continue
        if way == ORACLE:
            oracle = trained
        rows[way]["difference"] = contenders[way].difference(trained, oracle)
    count = repeats or max(LEAST_REPEATS, min(MOST_REPEATS, int(BUDGET / sum(trial.values()))))
    tell(f"{workload.name}: {count} repeats of each, about {count * sum(trial.values()):.0f} s")
    seconds: dict[Way, list[float]] = {way: [] for way in contenders}
    peaks = {p: machine.peak_tflops(device, p) for p in dict.fromkeys(way.precision for way in contenders)}
    for number in range(count):
        for way, contender in contenders.items():
            seconds[way].append(contender.seconds())
        peaks = {p: _seen_again(device, p, *peak) for p, peak in peaks.items()}
        tell(f"{workload.name}: repeat {number + 1} of {count}")
    median = {way: statistics.median(times) for way, times in seconds.items()}
    for way, times in seconds.items():
        peak, source = peaks[way.precision]
        tflops = 1e-12 * flop / median[way]
        rows[way] |= {
            "seconds": median[way],
            "all_seconds": times,
            "tflops": tflops,
            "peak_tflops": peak,
            "peak_source": source,
            "share_of_peak": tflops / peak,
            "times_the_oracle": median[ORACLE] / median[way],
            "chunk": contenders[way].chunk,
            "clients_trained": contenders[way].clients,
        }
    about = workload.describe() | {"device": device.type, "mflop_per_sample": 1e-6 * per_sample, "tflop_per_round": 1e-12 * flop}
    return about | {"ways": list(rows.values())}


def _seen_again(device: torch.device, precision: str, peak: float, source: str) -> tuple[float, str]:
    """The peak, higher where a measured one is now seen to be: the machine may have been busy before."""
    return (peak, source) if source == "stated" else (max(peak, machine.measured_tflops(device, precision, repeats=1)), source)


def _warmed_up(workload: Workload, samples: Samples, way: Way) -> tuple[Contender, Tree, float, int | None]:
    """A contender whose first rounds are behind it, what it trained, the seconds its last round took and its peak of memory."""
    device = samples.y.device
    cuda = device.type == "cuda"
    peak = None if cuda else memory.of_a_process(workload, way)
    held = torch.cuda.memory_allocated(device) if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    contender = Contender(workload, samples, way)
    if way.engine == ORACLE_ENGINE:
        contender.fit_into(LONGEST)
    spent: list[float] = []
    for _ in range(1 if way.engine == ORACLE_ENGINE else WARM_UP):
        spent.append(contender.seconds())
        if not cuda and sum(spent) > WARM_UP_SECONDS:
            break
    if cuda:  # without what contenders before this one still hold, but with the samples
        data = sum(t.numel() * t.element_size() for t in (samples.x, samples.y))
        peak = torch.cuda.max_memory_allocated(device) - held + data
    return contender, contender.round(keep=True), spent[-1] * contender.share, peak
