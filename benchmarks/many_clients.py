"""Many small clients, few of them per round, their features mapped from disk: seconds per round, and memory round by round.

    python benchmarks/many_clients.py --json > results/scale/cpu.json
    python benchmarks/many_clients.py --device cuda --json > results/scale/gpu.json

FedFew (K = 3, an MLP) on made-up samples that are written to a temporary file first, block by block, and mapped into memory then.
The memory printed is that of this process: what it has allocated (RssAnon), which includes the interpreter and libraries, and
what is mapped from files at the moment (RssFile), which the system takes back when memory is short. All clients are scored in
the last round and every --score-every rounds. Where others use the machine as well, processor seconds say more than the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedfew
from fedfew.bench import history, machine
from fedfew.config import TrainConfig
from fedfew.federation import Federation, Samples
from fedfew.training.on_round import Progress

CLASSES, TEST_SAMPLES, BLOCK = 10, 5, 100_000
WARM_UP = 3  # rounds in which steps are recorded


def mapped(path: Path, clients: int, samples: int, features: int, random: np.random.Generator) -> Samples:
    """Samples whose features are mapped from a file that never was in memory as a whole."""
    rows = clients * samples
    written = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, features))
    for at in range(0, rows, BLOCK):
        written[at : at + BLOCK] = random.standard_normal((min(BLOCK, rows - at), features), dtype=np.float32)
    del written
    x = torch.from_numpy(np.load(path, mmap_mode="c"))  # c: writes, of which there are none, would not reach the file
    y = torch.from_numpy(random.integers(0, CLASSES, rows))
    count = torch.full((clients,), samples)
    return Samples(x, y, count.cumsum(0) - count, count, samples)


def federation(folder: Path, given: argparse.Namespace) -> Federation:
    random = np.random.default_rng(0)
    train = mapped(folder / "train.npy", given.clients, given.samples, given.features, random)
    test = mapped(folder / "test.npy", given.clients, TEST_SAMPLES, given.features, random)
    return Federation(train=train, test=test, classes=CLASSES, ids=torch.arange(given.clients), name="made-up")


def memory() -> dict[str, int]:
    """MiB that this process has allocated, and that it has mapped from files; Linux."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(status[field].split()[0]) // 1024 for name, field in (("allocated", "RssAnon"), ("files", "RssFile"))}


def rounds_of(data: Federation, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Train, and record every round."""
    found: list[dict[str, Any]] = []
    device = torch.device(given.device)
    clocks = [(time.perf_counter(), time.process_time())]

    def watch(progress: Progress) -> None:
        machine.wait(device)
        clocks.append((time.perf_counter(), time.process_time()))
        seconds, busy = (after - before for before, after in zip(*clocks[-2:], strict=True))
        row = {"round": progress.round, "seconds": seconds, "processor_seconds": busy} | memory()
        row["scored"] = progress.history is not None and len(progress.history) > sum(r["scored"] for r in found)
        if device.type == "cuda":
            row["gpu"] = torch.cuda.max_memory_allocated(device) // 2**20
        found.append(row)
        if progress.round <= WARM_UP or progress.round % 10 == 0:
            print(line_of(row), file=sys.stderr, flush=True)

    config = TrainConfig(lr=0.1, batch_size=10, participation=given.participation, engine="stacked", device=given.device)
    fedfew.train(data, "mlp", "fedfew", config=config, rounds=given.rounds, score_every=given.score_every, on_round=watch)
    return found


def line_of(row: dict[str, Any]) -> str:
    more = f", GPU {row['gpu']} MiB" if "gpu" in row else ""
    more += ", all clients scored" if row["scored"] else ""
    return (
        f"round {row['round']}: {row['seconds']:.3f} s ({row['processor_seconds']:.3f} s of processor time), "
        f"{row['allocated']} MiB allocated, {row['files']} MiB of files mapped{more}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=20, help="for training, per client")
    parser.add_argument("--features", type=int, default=128, help="per sample")
    parser.add_argument("--participation", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--score-every", type=int, default=50)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, help="where the temporary file goes; on disk, or nothing is mapped from it")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, progress on stderr")
    parser.add_argument("--note", default="", help="a remark kept with the figures")
    parser.add_argument("--append", type=Path, help="append a line with the figures to this history")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        data = federation(Path(folder), given)
        before = memory()["allocated"]
        rounds = rounds_of(data, given)
    timed = [row for row in rounds[WARM_UP:] if not row["scored"]] or rounds
    summary = {
        "seconds": statistics.median(row["seconds"] for row in timed),
        "processor_seconds": statistics.median(row["processor_seconds"] for row in timed),
        "scored_seconds": [row["seconds"] for row in rounds if row["scored"]],
        "scored_processor_seconds": [row["processor_seconds"] for row in rounds if row["scored"]],
        "allocated_before": before,
        "allocated_after_warm_up": rounds[min(WARM_UP, len(rounds)) - 1]["allocated"],
        "allocated_at_most": max(row["allocated"] for row in rounds),
        "feature_mib": sum(s.x.numel() * s.x.element_size() for s in (data.train, data.test)) // 2**20,
    }
    settings = {name: value for name, value in vars(given).items() if name not in ("json", "folder", "note", "append")}
    if given.append is not None:
        result = (
            f"{summary['seconds']:.3g} s per round ({summary['processor_seconds']:.3g} s of processor time), scores of all "
            f"{min(summary['scored_seconds']):.3g} s ({min(summary['scored_processor_seconds']):.3g} s), "
            f"{summary['allocated_at_most']} MiB allocated, {summary['feature_mib']} MiB of features mapped"
        )
        row = {"benchmark": f"{given.clients:,} clients, {given.participation:.0%} per round", "result": result}
        history.append(given.append, history.measured(row | settings | summary, torch.device(given.device), given.note))
    document = {"machine": machine.describe(torch.device(given.device)), "settings": settings, **summary, "rounds": rounds}
    print(json.dumps(document, indent=1) if given.json else json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
