"""Small data, small networks, and engines to train them in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import fedfew
from fedfew.engines import Engine, LocalTraining, Sequential, Stacked, Threaded
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import Tree, leaves, named_leaves, stack
from tests.helpers import federation, linear

ENGINES = [Stacked, Threaded, Sequential]
FEDERATION = federation()
SIZES = (13, 22, 7, 27)  # in batches of 5: every client ends with a partial one


def images(sizes=SIZES, shape=(2, 6, 6), classes=3, test=6, seed=0, dtype=np.float32) -> fedfew.Federation:
    """Clients of unequal sizes; a class is a bright row, and clients differ in brightness."""
    rng = np.random.default_rng(seed)
    parts: tuple[list, list] = ([], [])
    for client, size in enumerate(sizes):
        for part, n in zip(parts, (size, test), strict=True):
            y = rng.integers(classes, size=n)
            x = rng.normal(size=(n, *shape)) + client
            x[np.arange(n), :, y] += 2
            part.append(((40 * x + 60).clip(0, 255).astype(np.uint8) if dtype == np.uint8 else x.astype(np.float32), y))
    return fedfew.Federation.from_arrays(*parts, classes=classes)


class Normalised(nn.Module):
    """A convolution and a linear layer, each with BatchNorm; in double precision, so that only mistakes are seen, no rounding."""

    def __init__(self, momentum: float | None = 0.1, channels: int = 2, drop: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm2d = nn.Conv2d(channels, 3, 3), nn.BatchNorm2d(3, momentum=momentum)
        self.hidden, self.norm1d = nn.Linear(48, 4), nn.BatchNorm1d(4, momentum=momentum)
        self.drop, self.out = nn.Dropout(drop), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2d(self.conv(x.double())).relu().flatten(1)
        return self.out(self.drop(self.norm1d(self.hidden(x)).relu()))


def cumulative() -> nn.Module:
    return Normalised(momentum=None)


def replicas(factory, clients=4, models=2) -> Tree:
    torch.manual_seed(0)
    return stack([stack([dict(factory().state_dict()) for _ in range(models)]) for _ in range(clients)])


def trained(cls: type[Engine], factory, data: fedfew.Federation, epochs=1, **training):
    """A few local epochs of every client: the engine, and what it returns."""
    engine = cls(factory(), LocalTraining(**({"lr": 0.1, "batch_size": 5} | training)), seed=3)
    params = replicas(factory, len(data))
    return engine, *engine.train(LocalEpochs(params, data.train, data.ids, 2, cross_entropy, {}, epochs))


def assert_close(a: Tree, b: Tree, tolerance=1e-6) -> None:
    others = dict(named_leaves(b))
    for name, x in named_leaves(a):
        torch.testing.assert_close(x, others[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def run(cls, factory=linear, objective=cross_entropy, context=None, epochs=1, data=FEDERATION, **training):
    torch.manual_seed(0)
    engine = cls(factory(), LocalTraining(**({"lr": 0.2, "batch_size": 8} | training)), seed=3)
    params = replicas(factory, len(data))
    return engine.train(LocalEpochs(params, data.train, data.ids, 5, objective, context or {}, epochs))


def assert_same(a, b, tolerance=1e-5):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert torch.allclose(x, y, atol=tolerance, rtol=tolerance), (x - y).abs().max()


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Dropout(0.4), nn.Linear(7, 3))
