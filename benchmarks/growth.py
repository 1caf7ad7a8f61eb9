"""Seconds per round and peak memory as a federation grows: clients M, models K, and the share of clients that take part.

    python benchmarks/growth.py --clock processor --output results/growth/growth.png
    python benchmarks/growth.py --model cnn --device cuda --chunk 100

FedFew on made-up images, 200 per client, through fedfew.train itself. On a CPU every point is measured in processes of its own,
one for the time and one for the peak of memory, in which freed memory goes back to the system at once; a GPU's memory is
counted by PyTorch, so one process does. The samples are not counted, nor what the program holds before it trains. A chunk of
clients, always the same, is trained at once. Where others use the machine as well, --clock processor counts the time this
program was given.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS = (20, 63, 200, 632, 2000)
MODELS = (1, 2, 3, 5, 10)
AT = 200  # clients where K varies
K = 3  # where M varies
PARTICIPATION = 0.01  # of the largest federation
SAMPLES, TEST_SAMPLES, BATCH = 200, 20, 20
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # glibc keeps what is freed, else
WARM_UP = 3  # rounds before any is timed: what is recorded has been by then


@dataclass(frozen=True)
class Point:
    """One federation to measure."""

    clients: int
    models: int = K
    participation: float = 1.0
    model: str = "mlp"
    device: str = "cpu"
    chunk: int = 20
    clock: str = "wall"
    samples: int = SAMPLES
    memory: bool = False  # is it the memory that is measured?

    @property
    def rounds(self) -> int:
        """Timed: many where they are short."""
        if self.memory:
            return 1
        return max(4, min(30, 4000 // max(1, round(self.clients * self.participation))))


@dataclass(frozen=True)
class Line:
    """seconds ≈ start + slope · M, by least squares of the relative error, and the slope of their logarithms."""

    start: float
    slope: float
    exponent: float
    worst: float  # largest relative distance of a point from the line


def fit(clients: list[int], seconds: list[float]) -> Line:
    m, s = np.array(clients, dtype=float), np.array(seconds)
    design = np.stack([1 / s, m / s], 1)  # relative errors, or the largest federation would decide alone
    (start, slope), *_ = np.linalg.lstsq(design, np.ones_like(s), rcond=None)
    exponent = float(np.polyfit(np.log(m), np.log(s), 1)[0])
    return Line(float(start), float(slope), exponent, float(np.abs((start + slope * m) / s - 1).max()))


def measure(point: Point) -> dict[str, Any]:
    """Train; seconds per round and peak bytes."""
    import torch

    import fedfew
    from fedfew.bench import machine
    from fedfew.bench.workloads import Workload
    from fedfew.federation import Federation

    now = CLOCKS[point.clock]
    shape = (1, 8, 8) if point.model == "mlp" else (3, 32, 32)

    def federation(clients: int, samples: int) -> Federation:
        own = Workload("growth", "", point.model, shape, 10, clients, 1, samples, BATCH, 0.05)
        test = Workload("growth", "", point.model, shape, 10, clients, 1, TEST_SAMPLES, BATCH, 0.05)
        return Federation(own.draw(), test.draw(), 10, torch.arange(clients), name="made-up")

    def train(data: Federation, timed: int, models: int, participation: float) -> list[float]:
        ends: list[float] = []
        fedfew.train(
            data,
            point.model,
            fedfew.FedFew(models=models),
            rounds=WARM_UP + timed + 1,
            score_every=WARM_UP + timed + 1,  # the last alone is scored, and not timed
            batch_size=BATCH,
            lr=0.05,
            participation=participation,
            engine="stacked",
            device=point.device,
            chunk=point.chunk,
            on_round=lambda told: ends.append(now()),
        )
        return [after - before for before, after in zip(ends[WARM_UP - 1 :], ends[WARM_UP:-1], strict=False)]

    train(federation(2, 2), 1, 1, 1.0)  # loads what is loaded when first used
    data = federation(point.clients, point.samples)
    where = torch.device(point.device)
    held = _held_now(where)
    seconds = train(data, point.rounds, point.models, point.participation)
    peak = torch.cuda.max_memory_allocated(where) if where.type == "cuda" else machine.peak_rss()
    data_bytes = sum(t.numel() * t.element_size() for s in (data.train, data.test) for t in (s.x, s.y))
    on_card = data_bytes if where.type == "cuda" else 0  # on a CPU the samples were held before
    return asdict(point) | {
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "peak_bytes": peak - held - on_card,
        "data_bytes": data_bytes,
        "machine": machine.describe(where),
    }


def _held_now(where: Any) -> int:
    """Bytes held before training; what was held at most until now is forgotten."""
    import torch

    if where.type == "cuda":
        gc.collect()  # the graphs of the point before hold memory
        torch.cuda.reset_peak_memory_stats(where)
        return int(torch.cuda.memory_allocated(where))
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the high-water mark begins anew
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def measured(point: Point) -> dict[str, Any]:
    """Seconds and bytes; on a CPU from one process each."""
    if point.device == "cpu":
        result = in_a_process(point) | {"peak_bytes": in_a_process(replace(point, memory=True))["peak_bytes"]}
    else:
        result = measure(point)
    print(f"  {line_of(result)}", file=sys.stderr)
    return result


def in_a_process(point: Point) -> dict[str, Any]:
    command = [sys.executable, __file__, "--point", json.dumps(asdict(point))]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | (GIVE_BACK if point.memory else {})
    )
    if done.returncode:
        raise RuntimeError(f"{point} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def line_of(result: dict[str, Any]) -> str:
    part = f"{result['participation']:.0%}" if result["participation"] < 1 else "all"
    return (
        f"M = {result['clients']:5d}  K = {result['models']:2d}  {part:>4} take part  {result['seconds']:9.4f} s per round  "
        f"{result['peak_bytes'] / 2**20:8.1f} MiB at most"
    )


def plot(growth: dict[str, list[dict[str, Any]]], line: Line, path: Path) -> None:
    """Three panels that can be read in grey: seconds against M and against K, and memory against M."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (time_m, memory_m, time_k) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    by_m, by_k, (few,) = growth["clients"], growth["models"], growth["participation"]
    m = [p["clients"] for p in by_m]
    seconds = "seconds per round" if by_m[0]["clock"] == "wall" else f"{by_m[0]['clock']} seconds per round"
    grid = np.geomspace(m[0], m[-1], 50)
    time_m.plot(grid, line.start + line.slope * grid, color="0.6", label=f"fit, {1000 * line.slope:.2g} ms per client")
    time_m.plot(m, [p["seconds"] for p in by_m], "ko", label=f"all take part, K = {K}")
    time_m.plot(few["clients"], few["seconds"], "k^", mfc="white", label=f"{few['participation']:.0%} take part")
    time_m.set(
        xscale="log",
        yscale="log",
        xlabel="clients M",
        ylabel=seconds,
        title=f"Time by clients, log–log slope {line.exponent:.2f}",
    )
    time_m.legend(frameon=False, fontsize=8)
    memory_m.plot(m, [p["peak_bytes"] / 2**20 for p in by_m], "ko-", label="training, peak")
    memory_m.plot(m, [p["data_bytes"] / 2**20 for p in by_m], "ks--", mfc="white", label="samples, held besides")
    memory_m.set(
        xscale="log", ylim=(0, None), xlabel="clients M", ylabel="MiB", title=f"Memory by clients, {by_m[0]['chunk']} at a time"
    )
    memory_m.legend(frameon=False, fontsize=8)
    time_k.plot([p["models"] for p in by_k], [p["seconds"] for p in by_k], "ko-")
    time_k.set(
        xlim=(0, None), ylim=(0, None), xlabel="models K", ylabel=seconds, title=f"Time by models, M = {by_k[0]['clients']}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--chunk", type=int, default=20, help="clients trained at once")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="processor: time given, of all threads together")
    parser.add_argument("--most", type=int, default=CLIENTS[-1], help="leave larger federations out")
    parser.add_argument("--output", type=Path, help="where the plot goes")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, progress on stderr")
    parser.add_argument("--plot", type=Path, metavar="JSON", help="measure nothing: draw what --json wrote, to --output")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(Point(**json.loads(options.point)))))
        return
    if options.plot:
        growth = json.loads(options.plot.read_text())
        plot(growth, Line(**growth["line"]), options.output or options.plot.with_suffix(".png"))
        return
    how = {"model": options.model, "device": options.device, "chunk": options.chunk, "clock": options.clock}
    clients = [m for m in CLIENTS if m <= options.most]
    growth = {
        "clients": [measured(Point(m, **how)) for m in clients],
        "models": [measured(Point(min(AT, clients[-1]), k, **how)) for k in MODELS],
        "participation": [measured(Point(clients[-1], participation=PARTICIPATION, **how))],
    }
    by_m = growth["clients"]
    line = fit(clients, [p["seconds"] for p in by_m])
    memory_ratio = by_m[-1]["peak_bytes"] / by_m[0]["peak_bytes"]
    if options.output:
        plot(growth, line, options.output)
    if options.json:
        print(json.dumps(growth | {"line": asdict(line), "memory_ratio": memory_ratio}, indent=1))
        return
    for rows in growth.values():
        print("\n".join(map(line_of, rows)), end="\n\n")
    print(f"seconds ≈ {line.start:.4f} + {line.slope:.6f} · M, at most {line.worst:.0%} off; log–log slope {line.exponent:.3f}")
    more = math.prod((clients[-1], 1 / clients[0]))
    print(f"memory of training: {memory_ratio:.2f} times as much for {more:.0f} times the clients")


if __name__ == "__main__":
    main()
