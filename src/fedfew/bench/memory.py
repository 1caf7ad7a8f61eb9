"""The most memory that one round takes on the CPU, seen from a process that does nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import torch

from fedfew.bench import machine
from fedfew.bench.contender import Contender, Way
from fedfew.bench.workloads import Workload


def of_a_process(workload: Workload, way: Way) -> int | None:
    """Peak bytes of a fresh process that does one round: the program, the samples and the training. None: it did not end well."""
    task = json.dumps({"workload": asdict(workload), "way": asdict(way), "threads": torch.get_num_threads()})
    command = [sys.executable, "-m", "fedfew.bench.memory", task]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def main(task: str) -> None:
    asked = json.loads(task)
    torch.set_num_threads(asked["threads"])
    workload = Workload(**asked["workload"] | {"shape": tuple(asked["workload"]["shape"])})
    Contender(workload, workload.draw(), Way(**asked["way"])).round()
    print(machine.peak_rss())


if __name__ == "__main__":
    main(sys.argv[1])
