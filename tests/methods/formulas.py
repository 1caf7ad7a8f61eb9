"""What float64 references of the methods are made of: a two-layer network differentiated by hand, SGD, and means.

They share nothing with the library but two things: initial weights, and the order in which a client sees its samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedfew import random_streams
from fedfew.models.served import ServedModel
from tests.methods.small import CLASSES, FEATURES, federation

DATA = federation()
COUNTS = DATA.train.count
N = [int(n) for n in COUNTS]
SHARE = [n / sum(N) for n in N]
M, K, ROUNDS, EPOCHS, LR, SEED, HIDDEN = len(N), 3, 3, 2, 0.2, 3, 5
X = [DATA.train.of(i)[0].double() for i in range(M)]
Y = [DATA.train.of(i)[1] for i in range(M)]

Weights = dict[str, Tensor]  # W1, b1, W2, b2
NAMES = {"inner.0.weight": "W1", "inner.0.bias": "b1", "inner.2.weight": "W2", "inner.2.bias": "b2"}
BODY, HEAD = ("W1", "b1"), ("W2", "b2")


class Double(nn.Module):
    """In double precision, so that only mistakes are seen, no rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.double())


def weights(module: nn.Module) -> Weights:
    """Of a mixture: the weights of its models, and the logarithms of theirs."""
    if isinstance(module, ServedModel):
        found = {f"{n} of {k}": t for k, model in enumerate(module.models) for n, t in weights(model).items()}
        return found | {"log_weights": module.log_weights.double()}
    return {NAMES[name]: t.clone() for name, t in module.state_dict().items() if name in NAMES}


def slope(p: Weights, x: Tensor, y: Tensor) -> tuple[Weights, float]:
    """Gradient and value of the mean cross-entropy of softmax(W2·tanh(W1·x + b1) + b2)."""
    h = torch.tanh(x @ p["W1"].T + p["b1"])
    z = h @ p["W2"].T + p["b2"]
    z = z - z.max(1, keepdim=True).values
    log_p = z - z.exp().sum(1, keepdim=True).log()
    e = (log_p.exp() - torch.eye(CLASSES, dtype=torch.float64)[y]) / len(y)  # ∂/∂z
    d = (e @ p["W2"]) * (1 - h**2)  # ∂/∂(W1·x + b1)
    return {"W1": d.T @ x, "b1": d.sum(0), "W2": e.T @ h, "b2": e.sum(0)}, float(-log_p[torch.arange(len(y)), y].mean())


@dataclass(frozen=True)
class Local:
    """What client i does in a round."""

    i: int
    round: int
    batch: int

    def batches(self, epochs: int, model: int = 0, first: int = 0) -> Any:
        for epoch in range(first, first + epochs):
            everyone = torch.arange(M)
            order = random_streams.order(SEED, self.round, everyone, K, epoch, COUNTS, int(COUNTS.max()))[
                self.i, model, : N[self.i]
            ]
            for rows in order.split(self.batch):
                yield X[self.i][rows], Y[self.i][rows], epoch == first + epochs - 1

    def sgd(
        self, p: Weights, epochs: int = EPOCHS, model: int = 0, first: int = 0, pull: float = 0.0, to: Weights | None = None,
        only: tuple[str, ...] = (*BODY, *HEAD), shift: Weights | None = None,
    ) -> tuple[Weights, float]:  # fmt: skip
        """SGD on F + pull/2·‖p − to‖² + ⟨shift, p⟩ in these weights; the running mean of F over the last epoch."""
        reported = 0.0
        for x, y, last in self.batches(epochs, model, first):
            g, value = slope(p, x, y)
            reported += value * len(y) / N[self.i] if last else 0.0
            slopes = {n: g[n] + (pull * (t - to[n]) if to else 0.0) + (shift[n] if shift else 0.0) for n, t in p.items()}
            p = {n: t - LR * slopes[n] if n in only else t for n, t in p.items()}
        return p, reported


def mean(models: list[Weights], share: list[float]) -> Weights:
    total = sum(share)
    return {n: sum(s / total * m[n] for s, m in zip(share, models, strict=True)) for n in models[0]}  # type: ignore[misc]


def loss(p: Weights, i: int) -> float:
    return slope(p, X[i], Y[i])[1]


Served = list[Weights]  # the model that each client uses in the end
