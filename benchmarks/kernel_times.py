"""Where a round goes on a GPU: the kernels of one round of FedFew and of FedAvg by their time, and the rounds themselves.

    python benchmarks/kernel_times.py                 # on a CPU: tiny sizes, operations instead of kernels
    python benchmarks/kernel_times.py --longest 20    # so many kernels of each
    python benchmarks/kernel_times.py --precision bf16
    python benchmarks/kernel_times.py --workload text-cnn

A workload of ``fedfew bench`` (cifar-cnn unless told: 20 clients, K = 3, random samples), trained by ``fedfew.train`` with the
recipe "strong" (label prior, server momentum, crop-flip augmentation of images). The round that is profiled is not scored; what
scores of all clients take is measured in a second run, which is scored in every round.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import fedfew
from fedfew import methods
from fedfew.bench import workloads

ROUNDS, PROFILED = 10, 8
LONG = 20  # microseconds


def federation(workload: workloads.Workload) -> fedfew.Federation:
    samples, train = workload.draw(), []
    for start, count in zip(samples.start.tolist(), samples.count.tolist(), strict=True):
        rows = slice(start, start + count)
        train.append((samples.x[rows].numpy(), samples.y[rows].numpy()))
    return fedfew.Federation.from_arrays(train, [(x[: len(x) // 4], y[: len(y) // 4]) for x, y in train])


def measure(
    data: fedfew.Federation, workload: workloads.Workload, method: methods.Method, device: str, precision: str, longest: int
) -> None:
    profiler = profile(activities=[ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU])
    ends = [time.perf_counter()]

    def watch(progress: fedfew.Progress) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
        if progress.round == PROFILED - 1 and progress.rounds == ROUNDS:
            profiler.__enter__()
        if progress.round == PROFILED:
            profiler.__exit__(None, None, None)

    augment = "crop-flip" if len(workload.shape) == 3 else "none"

    def train(score_every: int, rounds: int, on_round: Callable[[fedfew.Progress], None]) -> None:
        fedfew.train(
            data, workload.module, method, recipe="strong", augment=augment, rounds=rounds, lr=0.01, score_every=score_every,
            batch_size=workload.batch_size, device=device, engine="stacked", precision=precision, on_round=on_round,
        )  # fmt: skip

    train(1000, ROUNDS, watch)
    rounds = [end - begin for begin, end in pairwise(ends)]
    later = min(rounds[2 : PROFILED - 1])
    print(f"{method.name}: first round {rounds[0]:.2f} s, fastest of rounds 3 to {PROFILED - 1} {later:.4f} s")
    ends = [time.perf_counter()]
    train(1, PROFILED - 1, watch)
    scored = min(end - begin for begin, end in list(pairwise(ends))[2:])
    print(f"with scores of all clients in every round {scored:.4f} s: scores take {scored - later:.4f} s")
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    kind = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    events = [event for event in profiler.events() or [] if event.device_type == kind]  # not the calls that start kernels
    for event in events:
        times[event.name] += event.device_time if device == "cuda" else event.cpu_time
        calls[event.name] += 1
    print(f"round {PROFILED}: {calls.total()} kernels, {times.total() / 1000:.2f} ms")
    if device == "cuda":
        print_gaps(sorted((event.time_range.start, event.time_range.end, event.name) for event in events))
    for name, microseconds in times.most_common(longest):
        print(f"{microseconds / 1000:8.3f} ms {calls[name]:6d} times  {name[:100]}")


def print_gaps(kernels: list[tuple[float, float, str]]) -> None:
    """When the GPU had nothing to do from the first kernel of the round to the last: short and long gaps, the longest of all."""
    gaps, until = [], kernels[0][1]
    for start, end, name in kernels:
        if start > until:
            gaps.append((start - until, name))
        until = max(until, end)
    short = [length for length, _ in gaps if length < LONG]
    long = [length for length, _ in gaps if length >= LONG]
    print(f"first kernel to last {(until - kernels[0][0]) / 1000:.2f} ms; between kernels {sum(short) / 1000:.2f} ms in")
    print(f"{len(short)} gaps below {LONG} µs and {sum(long) / 1000:.2f} ms in {len(long)} longer ones, the longest before:")
    for length, name in sorted(gaps, reverse=True)[:8]:
        print(f"{length / 1000:8.3f} ms  {name[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=40, help="how many kernels are listed")
    parser.add_argument("--precision", default="tf32", help="of the factors of products, as of fedfew run")
    parser.add_argument("--workload", default="cifar-cnn", help="one of fedfew bench")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    clients, samples = (None, None) if device == "cuda" else (4, 60)
    workload = workloads.find(asked.workload, device, clients=clients, samples=samples)
    data = federation(workload)
    for method in (methods.FedFew(models=3), methods.FedAvg()):
        measure(data, workload, method, device, asked.precision, asked.longest)


if __name__ == "__main__":
    main()
