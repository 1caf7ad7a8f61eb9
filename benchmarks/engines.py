"""Seconds a round of the two engines, and of the usual way, side by side: digits MLP, 20 clients × 3 models.

    python benchmarks/engines.py

The usual way is what most code does: for each client and model a DataLoader, a module and torch.optim.SGD. Engines take turns, so
that a busy machine disturbs them alike; the ratio of the medians is what counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedfew
from fedfew import models
from fedfew.engines import Engine, LocalTraining, Sequential, Stacked, cross_entropy
from fedfew.federation import Federation
from fedfew.stack import Tree, tree_map

TRAINING = LocalTraining(lr=0.1, batch_size=10)


def module_for(federation: Federation) -> nn.Module:
    return models.build("mlp", federation.shape, federation.classes)


def engine_round(engine: Engine, federation: Federation, k: int) -> float:
    state: Tree = dict(engine.module.state_dict())
    params = tree_map(lambda t: t.expand(len(federation), k, *t.shape), state)
    begin = time.perf_counter()
    engine.train(params, federation.train, federation.ids, 1, cross_entropy, {}, 1)
    return time.perf_counter() - begin


def usual_round(federation: Federation, k: int) -> float:
    module = module_for(federation)
    begin = time.perf_counter()
    for i in range(len(federation)):
        data = TensorDataset(*federation.train.of(i))
        for _ in range(k):
            sgd = torch.optim.SGD(module.parameters(), lr=TRAINING.lr)
            for x, y in DataLoader(data, batch_size=TRAINING.batch_size, shuffle=True):
                sgd.zero_grad()
                F.cross_entropy(module(x), y).backward()
                sgd.step()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    federation = fedfew.data.digits()
    stacked, sequential = (cls(module_for(federation), TRAINING, 0) for cls in (Stacked, Sequential))
    ways = {
        "stacked": lambda: engine_round(stacked, federation, options.models),
        "sequential": lambda: engine_round(sequential, federation, options.models),
        "usual": lambda: usual_round(federation, options.models),
    }
    for way in ways.values():
        way()  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            seconds[name].append(way())
    median = {name: statistics.median(times) for name, times in seconds.items()}
    result = {
        "clients": len(federation),
        "models": options.models,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": median,
        "sequential/stacked": median["sequential"] / median["stacked"],
        "usual/stacked": median["usual"] / median["stacked"],
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"digits MLP, {len(federation)} clients × {options.models} models, one local epoch, batch {TRAINING.batch_size}")
    for name, value in median.items():
        print(f"  {name:<11} {1000 * value:8.2f} ms a round   {value / median['stacked']:6.1f} × stacked")


if __name__ == "__main__":
    main()
