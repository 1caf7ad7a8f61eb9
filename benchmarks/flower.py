"""Time and bytes of a round on Flower against those of the method alone: 4 sites, the paper's CNN (878,538 parameters), K = 3.

    python benchmarks/flower.py

A SuperLink and four SuperNodes on this machine, one process per message, as between real sites; images of CIFAR-10's size with
random pixels (neither time nor bytes depend on the images). The measured seconds and bytes are compared with the same local work
of one client in this process, and with the bytes of the tensors that the method sends (fedfew.evaluation.costs). Bytes on the
wire are all those that the loopback interface counted: nothing else should use it meanwhile. An array crosses it up to three
times (app to SuperLink, SuperLink to SuperNode, SuperNode to app), of which one is between machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedfew
from fedfew import models
from fedfew.engines import LocalTraining, Sequential
from fedfew.evaluation.costs import cost
from fedfew.flower import template
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.local import Local
from fedfew.methods import Method
from fedfew.stack import Tree, take
from fedfew.training.initialisation import fresh_models

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.localhost import Deployment, ProgramError

SITES, BATCH, LR = 4, 50, 0.005
SHAPE, CLASSES = (3, 32, 32), 10


def sites_data(folder: Path, samples: int) -> fedfew.Federation:
    """A file for each site, and all of them as one federation."""
    rng = np.random.default_rng(0)
    pairs = []
    for i in range(SITES):
        x, y = rng.integers(0, 256, (samples, *SHAPE), dtype=np.uint8), rng.integers(0, CLASSES, samples)
        np.savez(folder / f"site-{i}.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
        pairs.append((x, y))
    return fedfew.Federation.from_arrays(pairs, [(x[:50], y[:50]) for x, y in pairs], classes=CLASSES)


def local_seconds(federation: fedfew.Federation, method: Method, repeats: int) -> float:
    """Seconds of one client's local work, plain PyTorch in this process."""

    def factory() -> torch.nn.Module:
        return models.build("cnn", SHAPE, CLASSES)

    server, own = method.init(fresh_models(factory, 0, torch.device("cpu")), SITES)
    engine = Sequential(factory(), LocalTraining(LR, BATCH), 0)
    one = torch.tensor([0])
    kept: Tree = take(own, one)
    seconds = []
    for number in range(1, repeats + 1):
        local = Local(engine, federation.train.take(one), one, number, torch.tensor([1 / SITES]))
        begin = time.perf_counter()
        method.client(method.dispatch(server, one), kept, local)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def deployed(folder: Path, rounds: int, method: str) -> dict[str, Any]:
    """Seconds of every round between real processes, and bytes over the loopback interface while they ran."""
    run = folder / "run"
    template.write(folder / "app")
    with Deployment(folder) as here:
        for i in range(SITES):
            here.node(i, f'client={i} data="{folder}/site-{i}.npz" classes={CLASSES} device="cpu"')
        settings = {"method": method, "model": "cnn", "rounds": rounds, "score-every": rounds, "folder": str(run)}
        program = here.start_run(folder / "app", settings | {"batch-size": BATCH, "lr": LR})
        marks: list[tuple[float, int]] = []

        def finished() -> bool:
            text = program.text()
            for number in range(len(marks) + 1, rounds):  # the last round ends with a second exchange: it is not timed
                if f"round {number} of {rounds}" in text:
                    marks.append((time.perf_counter(), loopback()))
                    print(f"  round {number} of {rounds}", flush=True)
            return not program.running()

        here.wait_for(finished, "the run's end", seconds=3600)
        if len(marks) < rounds - 1:
            raise ProgramError(f"the run ended early: {program.text()[-2000:]}")
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
    return {
        "seconds": statistics.median(s for s, _ in steps),
        "wire_bytes": statistics.median(n for _, n in steps),
        "history": fedfew.load(run).history,
    }


def loopback() -> int:
    """Bytes that the loopback interface has sent so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, colon, counts = line.partition(":")
        if colon and name.strip() == "lo":
            return int(counts.split()[8])
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--samples", type=int, default=200, help="training samples of a site")
    parser.add_argument("--method", default="fedfew:models=3")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = sites_data(folder, options.samples)
        method = DeploymentConfig(method=options.method).make_method()
        own_work = local_seconds(federation, method, repeats=3)
        own_bytes = cost(method, "cnn", federation, 1, BATCH)
        measured = deployed(folder, options.rounds, options.method)
    history = measured.pop("history")
    tensors = SITES * (own_bytes.bytes_up + own_bytes.bytes_down)
    result = {
        "sites": SITES,
        "samples": options.samples,
        "method": options.method,
        "seconds": measured["seconds"],
        "one_client_seconds": own_work,
        "seconds/one_client": measured["seconds"] / own_work,
        "tensor_bytes": tensors,
        "counted_bytes": int(history.bytes_up[-1] + history.bytes_down[-1]),
        "wire_bytes": measured["wire_bytes"],
        "wire/tensors": measured["wire_bytes"] / tensors,
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{options.method}, {SITES} sites of {options.samples} images, CNN, a round:")
    ratio = result["seconds/one_client"]
    print(f"  {measured['seconds']:8.1f} s on Flower; {own_work:.2f} s is one client's own work: {ratio:.1f} ×")
    print(f"  {result['counted_bytes'] / 1e6:8.1f} MB counted by the server; {tensors / 1e6:.1f} MB is what the method sends")
    print(f"  {measured['wire_bytes'] / 1e6:8.1f} MB over the loopback interface: {result['wire/tensors']:.2f} ×")


if __name__ == "__main__":
    main()
