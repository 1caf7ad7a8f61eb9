"""Runs of one method with different seeds: in one stack (a pack), and one after another.

    python benchmarks/packed_runs.py --runs 10 --clock processor                                     # digits MLP, CPU
    python benchmarks/packed_runs.py --device cuda --workload cifar-cnn --runs 10 --alone 3          # the paper's CNN, GPU

Samples are random, in the shape of the real data; every seed partitions the same rows among the clients in another way. Printed
are seconds per run and round after the first rounds, in which steps are recorded, and of whole runs with those; and by how much
the models of a run in the pack differ from those of the same run alone, relative to the largest parameter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import fedfew
from fedfew.bench.workloads import Workload, find
from fedfew.engines.packed import Pack
from fedfew.federation import Federation, Samples
from fedfew.stack import leaves

TEST = 5  # training samples per test sample
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Seeds:
    """Federations that consist of the same rows."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.train = workload.draw()
        self.test_rows = max(workload.clients, len(self.train.y) // TEST)

    def federation(self, seed: int) -> Federation:
        draw = np.random.default_rng(seed)
        train = self._shuffled(draw, len(self.train.y))
        rows = len(train.y)
        share = train.count.double() / rows
        extra = (share * (self.test_rows - len(share))).floor().long()
        count = 1 + extra
        test = Samples(train.x[: int(count.sum())], train.y[: int(count.sum())], count.cumsum(0) - count, count, int(count.max()))
        return Federation(train, test, self.workload.classes, torch.arange(len(share)), name=f"random-{seed}")

    def _shuffled(self, draw: np.random.Generator, rows: int) -> Samples:
        clients = self.workload.clients
        share = np.full(clients, 1 / clients)
        if self.workload.alpha is not None:
            share = draw.dirichlet([self.workload.alpha] * clients, self.workload.classes).mean(0)
        ends = np.rint(np.cumsum(share) * (rows - clients)).astype(int)
        count = torch.from_numpy(1 + np.diff(ends, prepend=0))
        order = torch.from_numpy(draw.permutation(rows))[: int(count.sum())]
        return Samples(self.train.x[order], self.train.y[order], count.cumsum(0) - count, count, int(count.max()))


class Timed:
    """Runs whose rounds are timed."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.clock = given, CLOCKS[given.clock]
        self.seeds = Seeds(find(given.workload, given.device, clients=given.clients, samples=given.samples))
        self.ends: dict[tuple[int, int], float] = {}

    def task(self, seed: int, rounds: int | None = None) -> Callable[[], fedfew.Run]:
        workload, given = self.seeds.workload, self.given
        data = self.seeds.federation(seed)

        def note(progress: fedfew.Progress) -> None:
            self.ends[seed, progress.round] = self.clock()

        settings: dict[str, Any] = {"lr": workload.lr, "batch_size": workload.batch_size, "score_every": given.score_every}
        return lambda: fedfew.train(
            data,
            workload.model,
            given.method,
            seed=seed,
            rounds=rounds or given.rounds,
            engine="stacked",
            device=given.device,
            precision=given.precision,
            on_round=note,
            **settings,
        )

    def steady(self, seeds: range) -> float:
        """Seconds between the end of the first rounds, of all these runs, and the end of all."""
        first, last = self.given.warm_up, self.given.rounds
        return max(self.ends[s, last] for s in seeds) - max(self.ends[s, first] for s in seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="digits-mlp", choices=["digits-mlp", "cifar-cnn", "text-cnn", "resnet18"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--alone", type=int, help="how many of them are made one after another (default: all)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=4, help="rounds that are not counted")
    parser.add_argument("--score-every", type=int, default=1)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--samples", type=int, help="mean training samples per client")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    timed = Timed(given)
    timed.task(0, 2)()  # imports, and compiles kernels
    counted, alone_runs = given.rounds - given.warm_up, given.alone or given.runs
    tasks = [timed.task(seed) for seed in range(given.runs)]

    begin = timed.clock()
    together: list[fedfew.Run] = []
    for run in Pack().run(tasks):
        if isinstance(run, BaseException):
            raise run
        together.append(run)
    whole_pack = (timed.clock() - begin) / given.runs / given.rounds
    steady_pack = timed.steady(range(given.runs)) / given.runs / counted
    memory = torch.cuda.max_memory_allocated() / 2**20 if given.device != "cpu" else None

    begin = timed.clock()
    alone = [task() for task in tasks[:alone_runs]]
    whole_alone = (timed.clock() - begin) / alone_runs / given.rounds
    steady_alone = sum(timed.steady(range(s, s + 1)) for s in range(alone_runs)) / alone_runs / counted

    differs = max(relative_difference(a, b) for a, b in zip(alone, together, strict=False))
    print(f"{given.workload}, {given.method}, {given.runs} runs of {given.rounds} rounds, {given.device}, {given.clock} seconds")
    print(f"per run and round: {1000 * steady_alone:.2f} ms alone, {1000 * steady_pack:.2f} ms in the pack, without the first")
    print(f"whole runs:        {1000 * whole_alone:.2f} ms alone, {1000 * whole_pack:.2f} ms in the pack, per round")
    print(f"throughput: {steady_alone / steady_pack:.2f} times, whole runs {whole_alone / whole_pack:.2f} times")
    print(f"models differ by {differs:.1e}" + ("" if memory is None else f"; {memory:,.0f} MiB of GPU memory with the pack"))
    figures = {"alone": steady_alone, "pack": steady_pack, "alone_whole": whole_alone, "pack_whole": whole_pack}
    print(json.dumps(vars(given) | figures | {"differs": differs, "memory_mib": memory}))


def relative_difference(a: fedfew.Run, b: fedfew.Run) -> float:
    """Of the servers' models, in the worst tensor."""
    pairs = zip(leaves(a.state.server), leaves(b.state.server), strict=True)
    return max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs)


if __name__ == "__main__":
    main()
