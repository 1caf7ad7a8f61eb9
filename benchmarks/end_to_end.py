"""A whole run as a user starts it (scores every round, checkpoints): the engine that auto takes beside the sequential one.

The digits MLP, 20 clients × 3 models, in the stack, plain or with the recipe "strong" (--workload digits-mlp-strong); or the
paper's CNN, 6 clients × 3 models, 150 made-up images each, with the recipe "strong", one replica per core (--workload cifar-cnn).
As many threads as PyTorch takes by itself. The engines take turns. Of the wall time and of the CPU time (of all threads) of each,
the least over the repeats counts. Other work on the machine affects CPU time less, so compare versions of the code by the CPU
time on one thread. The first call, which imports and warms up, is not counted; recording is.

    python benchmarks/end_to_end.py --rounds 100 --repeats 3
    python benchmarks/end_to_end.py --workload cifar-cnn --rounds 5
    python benchmarks/end_to_end.py --threads 1
    python benchmarks/end_to_end.py --busy 1    # while another process keeps a core busy
    python benchmarks/end_to_end.py --append benchmarks/history.jsonl --note "what changed"
    python benchmarks/end_to_end.py --threads 1 --parts    # where a round of the stacked engine goes
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedfew
from fedfew.bench import history
from fedfew.engines.base import Engine
from fedfew.engines.orders import Orders
from fedfew.engines.stacked import traced
from fedfew.engines.stacked.engine import Stacked
from fedfew.training import api, checkpoint, loop, round_record
from fedfew.training.aggregation import Aggregation
from fedfew.training.serving import Serving


@dataclass(frozen=True)
class Workload:
    about: str
    data: Callable[[], fedfew.Federation]
    settings: dict[str, Any]
    engine: str  # the fast one
    slower: int  # about how many times the sequential engine is, so that it need not train as many rounds


def images() -> fedfew.Federation:
    draw = np.random.RandomState(0)

    def clients(samples: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(draw.rand(samples, 3, 32, 32).astype(np.float32), draw.randint(0, 10, samples)) for _ in range(6)]

    return fedfew.Federation.from_arrays(train=clients(150), test=clients(50))


WORKLOADS = {
    "digits-mlp": Workload(
        "digits-mlp 20 × 3",
        lambda: fedfew.data.load("digits", clients=20),
        {"model": "mlp", "lr": 0.1, "batch_size": 10},
        "stacked",
        30,
    ),
    "digits-mlp-strong": Workload(
        'digits-mlp 20 × 3, recipe "strong"',
        lambda: fedfew.data.load("digits", clients=20),
        {"model": "mlp", "lr": 0.1, "batch_size": 10, "recipe": "strong"},
        "stacked",
        30,
    ),
    "cifar-cnn": Workload(
        'cifar-cnn 6 × 3, recipe "strong"',
        images,
        {"model": "cnn", "lr": 0.01, "batch_size": 50, "recipe": "strong"},
        "threaded",
        1,
    ),
}

PARTS: list[tuple[Any, str, str]] = [
    (traced, "recorded", "recording steps and scores"),
    (traced, "_replay", "recording steps and scores"),
    (Stacked, "_train", "training: around the replay"),
    (Serving, "scores", "scores: around the replay"),
    (Orders, "of", "orders of samples"),
    (Engine, "pass_of", "orders of samples"),
    (Aggregation, "add", "weights and weighted mean"),
    (Aggregation, "result", "weights and weighted mean"),
    (Aggregation, "events", "history and lines about the round"),
    (round_record, "record", "history and lines about the round"),
    (checkpoint, "write", "checkpoints"),
    (loop.RoundLoop, "_round", "rest of the round"),
    (api, "train", "before and after the rounds"),
]


class Parts:
    """CPU seconds of the parts of a run, each without the parts called within it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._within: list[float] = []

    def timed(self, function: Any, part: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            self._within.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                took = time.process_time() - begin
                self.seconds[part] += took - self._within.pop()
                if self._within:
                    self._within[-1] += took

        return call

    def install(self) -> None:
        for owner, name, part in PARTS:
            setattr(owner, name, self.timed(getattr(owner, name), part))
        module: dict[str, Any] = vars(traced)
        scripted = module["scripted"]

        def named(graph: Any, constants: Any) -> Any:
            program = scripted(graph, constants)
            trains = any("baddbmm_" in str(node.target) for node in graph.nodes)
            return program and self.timed(program, "training: the replay" if trains else "scores: the replay")

        module["scripted"] = named


def train(workload: Workload, data: fedfew.Federation, engine: str, rounds: int, folder: str) -> None:
    api.train(data, method="fedfew", rounds=rounds, engine=engine, folder=folder, **workload.settings)


def print_parts(workload: Workload, data: fedfew.Federation, rounds: int, repeats: int) -> None:
    parts = Parts()
    parts.install()
    best: dict[str, float] = {}
    for _ in range(repeats):
        parts.seconds.clear()
        with tempfile.TemporaryDirectory() as folder:
            train(workload, data, workload.engine, rounds, folder)
        if not best or sum(parts.seconds.values()) < sum(best.values()):
            best = dict(parts.seconds)
    whole = sum(best.values())
    for part, seconds in sorted(best.items(), key=lambda item: -item[1]):
        print(f"{part}: {1000 * seconds / rounds:.2f} ms of CPU time per round, {100 * seconds / whole:.0f} %")
    print(f"together: {1000 * whole / rounds:.2f} ms")


def seconds_per_round(workload: Workload, data: fedfew.Federation, engine: str, rounds: int) -> dict[str, float]:
    """Of wall time and of CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        train(workload, data, engine, rounds, folder)
        return {"wall": (time.perf_counter() - wall) / rounds, "cpu": (time.process_time() - cpu) / rounds}


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Within: so many other processes each keep a core busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="digits-mlp")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of PyTorch; unless given, as many as it takes by itself")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep a core busy each while this one measures")
    parser.add_argument("--append", type=Path, help="append a line with the figures to this history")
    parser.add_argument("--note", default="", help="what changed, for that line")
    parser.add_argument("--parts", action="store_true", help="print where a round of the fast engine goes instead")
    given = parser.parse_args()
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    workload = WORKLOADS[given.workload]
    data, fast = workload.data(), workload.engine
    rounds = {fast: given.rounds, "sequential": max(1, given.rounds // workload.slower)}
    seconds_per_round(workload, data, fast, 2)
    if given.parts:
        print_parts(workload, data, given.rounds, given.repeats)
        return
    measured: dict[str, list[dict[str, float]]] = {engine: [] for engine in rounds}
    with busy(given.busy):
        for _ in range(given.repeats):
            for engine, number in rounds.items():
                measured[engine].append(seconds_per_round(workload, data, engine, number))
    least = {engine: {of: min(one[of] for one in each) for of in ("wall", "cpu")} for engine, each in measured.items()}
    ratio = {of: least["sequential"][of] / least[fast][of] for of in ("wall", "cpu")}
    threads = f"{torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    results = []
    for of, words in (("wall", "wall time"), ("cpu", "CPU time")):
        times = ", ".join(f"{engine} {1000 * seconds[of]:.1f} ms" for engine, seconds in least.items())
        results.append(f"{times} of {words} per round, {ratio[of]:.1f} times")
    beside = f", {given.busy} busy beside it" if given.busy else ""
    print(f"{threads}{beside}:", *results, sep="\n")
    if given.append is not None:
        row = {
            "benchmark": f"end to end, {workload.about}, {given.rounds} rounds, {threads}{beside}",
            "result": "; ".join(results),
            "rounds": given.rounds,
            "repeats": given.repeats,
            "threads": torch.get_num_threads(),
            "busy": given.busy,
            "seconds_per_round": least,
            "ratio": ratio,
        }
        history.append(given.append, history.measured(row, torch.device("cpu"), given.note))


if __name__ == "__main__":
    main()
