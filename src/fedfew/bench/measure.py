"""Measure a workload on several engine variants: seconds, FLOP/s, memory, and agreement with the oracle."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from fedfew.bench import flops, machine, memory
from fedfew.bench.timed_engine import ORACLE, ORACLE_ENGINE, TimedEngine, Variant
from fedfew.bench.workloads import Workload
from fedfew.federation import Samples
from fedfew.stack import Tree

WARM_UP = 4  # rounds after which graphs are recorded and kernels tuned; the oracle needs one
WARM_UP_SECONDS = 4.0  # on a CPU a long round gains nothing from recording
LONGEST = 10.0  # seconds of the oracle's round; if it would take longer, only some of the clients are trained
BUDGET = 20.0  # seconds of repeats for a workload, where their number is not given
LEAST_REPEATS, MOST_REPEATS = 3, 9
ShowStatus = Callable[[str], None]


def measure(
    workload: Workload, variants: list[Variant], device: torch.device, repeats: int | None, show_status: ShowStatus
) -> dict[str, Any]:
    """One workload on several variants, the oracle first: its description, and a row of figures per variant.

    The variants take turns, so that other load on the machine affects them alike; the median of the repeats counts. A variant
    that fails has an ``error`` in place of figures, and the others continue.
    """
    samples = workload.draw().to(device)
    per_sample = flops.training_flop(workload.module().to(device), samples)
    flop = flops.round_flop(workload, per_sample)
    rows: dict[Variant, dict[str, Any]] = {
        variant: {"engine": variant.engine, "precision": variant.precision} for variant in variants
    }
    timed: dict[Variant, TimedEngine] = {}
    oracle: Tree = {}
    trial: dict[Variant, float] = {}
    for variant in variants:
        show_status(f"{workload.name}: {variant}, warming up")
        try:
            timed[variant], trained, trial[variant], rows[variant]["peak_bytes"] = _warmed_up(workload, samples, variant)
        except (RuntimeError, TypeError, ValueError) as error:
            if variant == ORACLE:
                raise
            rows[variant]["error"] = str(error).partition("\n")[0]
            continue
        if variant == ORACLE:
            oracle = trained
        rows[variant]["difference"] = timed[variant].difference(trained, oracle)
    count = repeats or max(LEAST_REPEATS, min(MOST_REPEATS, int(BUDGET / sum(trial.values()))))
    show_status(f"{workload.name}: {count} repeats of each, about {count * sum(trial.values()):.0f} s")
    for variant, figures in _timed(timed, device, flop, count, lambda text: show_status(f"{workload.name}: {text}")).items():
        rows[variant] |= figures
    about = workload.describe() | {"device": device.type, "mflop_per_sample": 1e-6 * per_sample, "tflop_per_round": 1e-12 * flop}
    return about | {"variants": list(rows.values())}


def _timed(
    engines: dict[Variant, TimedEngine], device: torch.device, flop: float, count: int, show_status: ShowStatus
) -> dict[Variant, dict[str, Any]]:
    """Figures of the variants, which take turns for so many rounds of ``flop`` operations."""
    seconds: dict[Variant, list[float]] = {variant: [] for variant in engines}
    peaks = {p: machine.peak_tflops(device, p) for p in dict.fromkeys(variant.precision for variant in engines)}
    for number in range(count):
        for variant, engine in engines.items():
            seconds[variant].append(engine.seconds())
        peaks = {p: _remeasured(device, p, *peak) for p, peak in peaks.items()}
        show_status(f"repeat {number + 1} of {count}")
    median = {variant: statistics.median(times) for variant, times in seconds.items()}
    figures = {}
    for variant, times in seconds.items():
        peak, source = peaks[variant.precision]
        tflops = 1e-12 * flop / median[variant]
        figures[variant] = {
            "seconds": median[variant],
            "all_seconds": times,
            "tflops": tflops,
            "peak_tflops": peak,
            "peak_source": source,
            "share_of_peak": tflops / peak,
            "times_the_oracle": median[ORACLE] / median[variant],
            "chunk": engines[variant].chunk,
            "clients_trained": engines[variant].clients,
        }
    return figures


def _remeasured(device: torch.device, precision: str, peak: float, source: str) -> tuple[float, str]:
    """The peak; a measured one is measured again and the higher value kept, since the machine may have been busy before."""
    return (peak, source) if source == "stated" else (max(peak, machine.measured_tflops(device, precision, repeats=1)), source)


def _warmed_up(workload: Workload, samples: Samples, variant: Variant) -> tuple[TimedEngine, Tree, float, int | None]:
    """An engine after its warm-up rounds, what it trained, the seconds of its last round and its peak memory."""
    device = samples.y.device
    cuda = device.type == "cuda"
    peak = None if cuda else memory.of_a_process(workload, variant)
    held = torch.cuda.memory_allocated(device) if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    engine = TimedEngine(workload, samples, variant)
    if variant.engine == ORACLE_ENGINE:
        engine.fit_into(LONGEST)
    spent: list[float] = []
    for _ in range(1 if variant.engine == ORACLE_ENGINE else WARM_UP):
        spent.append(engine.seconds())
        if not cuda and sum(spent) > WARM_UP_SECONDS:
            break
    if cuda:  # without what the engines before this one still hold, but with the samples
        data = sum(t.numel() * t.element_size() for t in (samples.x, samples.y))
        peak = torch.cuda.max_memory_allocated(device) - held + data
    return engine, engine.round(keep=True), spent[-1] * engine.share, peak
