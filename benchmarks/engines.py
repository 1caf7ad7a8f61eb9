"""Seconds a round of every engine, and of the usual way, side by side.

    python benchmarks/engines.py                 digits MLP, 20 clients × 3 models
    python benchmarks/engines.py --model cnn     the paper's CNN on images of 32×32×3, batch 50, 8 unequal clients × 3 models

The usual way is what most code does: for each client and model a DataLoader, a module and torch.optim.SGD; the CNN has its ReLU
before the pooling, as in the paper's code. Engines take turns, so that a busy machine disturbs them alike, each for as many
rounds as fit in a fifth of a second, as rounds of training follow each other too; the ratio of the medians is what counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedfew
from fedfew import models
from fedfew.engines import Engine, LocalTraining
from fedfew.engines.choice import ENGINES, make
from fedfew.federation import Federation, as_input
from fedfew.local import cross_entropy
from fedfew.stack import Tree, tree_map

SIZES = (150, 200, 60, 340, 110, 250, 90, 180)  # samples of the clients with images
TURN = 0.2  # seconds
TRAINING = {"mlp": LocalTraining(lr=0.1, batch_size=10), "cnn": LocalTraining(lr=0.005, batch_size=50)}


def images() -> Federation:
    """Clients of unequal size with images of noise: the time of a step does not depend on what is in them."""
    draw = torch.Generator().manual_seed(0)
    clients = [
        (torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=draw), torch.randint(10, (n,), generator=draw))
        for n in SIZES
    ]
    return Federation.from_arrays(clients, [(x[:2], y[:2]) for x, y in clients], classes=10, name="noise of 32×32×3")


def engine_round(engine: Engine, federation: Federation, k: int) -> float:
    state: Tree = dict(engine.module.state_dict())
    params = tree_map(lambda t: t.expand(len(federation), k, *t.shape), state)
    begin = time.perf_counter()
    engine.train(params, federation.train, federation.ids, 1, cross_entropy, {}, 1)
    return time.perf_counter() - begin


def as_usually_written(module: nn.Module) -> nn.Module:
    """The same function with every ReLU before its pooling, as in the paper's code; ours is the other way round."""
    layers = list(module.children())
    for i in range(len(layers) - 1):
        if isinstance(layers[i], nn.MaxPool2d) and isinstance(layers[i + 1], nn.ReLU):
            layers[i : i + 2] = layers[i + 1], layers[i]
    return nn.Sequential(*layers)


def usual_round(module: nn.Module, training: LocalTraining, federation: Federation, k: int) -> float:
    begin = time.perf_counter()
    for i in range(len(federation)):
        x, y = federation.train.of(i)
        data = TensorDataset(as_input(x), y)
        for _ in range(k):
            sgd = torch.optim.SGD(module.parameters(), lr=training.lr)
            for inputs, labels in DataLoader(data, batch_size=training.batch_size, shuffle=True):
                sgd.zero_grad()
                F.cross_entropy(module(inputs), labels).backward()
                sgd.step()
    return time.perf_counter() - begin


def turn(one_round: Callable[[], float]) -> float:
    """Mean seconds of a round."""
    seconds = [one_round()]
    while sum(seconds) < TURN:
        seconds.append(one_round())
    return statistics.mean(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=TRAINING, default="mlp")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    federation = fedfew.data.digits() if options.model == "mlp" else images()
    training = TRAINING[options.model]

    def module() -> nn.Module:
        return models.build(options.model, federation.shape, federation.classes)

    def way(engine: Engine) -> Callable[[], float]:
        return lambda: engine_round(engine, federation, options.models)

    ways = {name: way(ENGINES[name](module(), training, 0)) for name in options.engines}
    usual = as_usually_written(module())
    ways["usual"] = lambda: usual_round(usual, training, federation, options.models)
    for warm_up in ways.values():
        turn(warm_up)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, one_round in ways.items():
            seconds[name].append(turn(one_round))
    median = {name: statistics.median(times) for name, times in seconds.items()}
    fastest = min(options.engines, key=median.__getitem__)
    result = {
        "model": options.model,
        "clients": len(federation),
        "models": options.models,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "auto": make("auto", module(), training, 0, federation.train, options.models).name,
        "seconds": median,
        f"usual/{fastest}": median["usual"] / median[fastest],
    }
    if "sequential" in median:
        result[f"sequential/{fastest}"] = median["sequential"] / median[fastest]
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(
        f"{options.model} on {federation.name}, {len(federation)} clients × {options.models} models, one local epoch, "
        f"batch {training.batch_size}, {torch.get_num_threads()} threads; auto takes {result['auto']}"
    )
    for name, value in median.items():
        print(f"  {name:<11} {1000 * value:8.2f} ms a round   {value / median[fastest]:6.1f} × {fastest}")


if __name__ == "__main__":
    main()
