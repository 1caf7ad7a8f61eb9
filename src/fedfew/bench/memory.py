"""Peak memory of one round on the CPU, measured in a process that does nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import torch

from fedfew.bench import machine
from fedfew.bench.timed_engine import TimedEngine, Variant
from fedfew.bench.workloads import Workload


def of_a_process(workload: Workload, variant: Variant) -> int | None:
    """Peak bytes of a fresh process that does one round: the program, the samples and the training. None: it failed."""
    task = json.dumps({"workload": asdict(workload), "variant": asdict(variant), "threads": torch.get_num_threads()})
    command = [sys.executable, "-m", "fedfew.bench.memory", task]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def main(task: str) -> None:
    asked = json.loads(task)
    torch.set_num_threads(asked["threads"])
    workload = Workload(**asked["workload"] | {"shape": tuple(asked["workload"]["shape"])})
    TimedEngine(workload, workload.draw(), Variant(**asked["variant"])).round()
    print(machine.peak_rss())


if __name__ == "__main__":
    main(sys.argv[1])
