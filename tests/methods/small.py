"""Federations and models small enough to check by hand, and one way to train them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import fedfew
from fedfew.federation import Federation
from fedfew.methods import Method
from fedfew.models.served import ServedModel
from fedfew.stack import Tree, named_leaves
from fedfew.training.run import Run

SIZES = (7, 12, 5, 9, 16, 8)
FEATURES, CLASSES = 4, 3


def federation(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Federation:
    """Clients of these sizes; each sees the same three blobs turned its own way, so that no model fits all."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=draw)
    train, test = [], []
    for client, size in enumerate(sizes):
        for part, n in ((train, size), (test, 6)):
            y = torch.randint(CLASSES, (n,), generator=draw)
            x = centres[y].roll(client % 3, 1) + 0.5 * torch.randn(n, FEATURES, generator=draw)
            part.append((x, y))
    return Federation.from_arrays(train, test, classes=CLASSES)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def normalised() -> nn.Module:
    """A model with buffers that training moves."""
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def train(method: Method, data: Federation | None = None, model: Any = mlp, **changes: Any) -> Run:
    """A short run with all that can go wrong: unequal clients, partial batches, momentum, absent clients, several epochs."""
    settings: dict[str, Any] = {
        "rounds": 3,
        "local_epochs": 2,
        "batch_size": 4,
        "lr": 0.2,
        "momentum": 0.5,
        "participation": 0.7,
        "engine": "sequential",
        "device": "cpu",
        "seed": 3,
    }
    return fedfew.train(federation() if data is None else data, model, method, **(settings | changes))


PLAIN: dict[str, Any] = {"momentum": 0.0, "participation": 1.0}  # what a formula on paper assumes


def tensors(run: Run) -> dict[str, Tensor]:
    """All there is after a run, by name: the server's state, the clients' own, what was recorded (but for the time it took)."""
    found = dict(named_leaves({"server": run.state.server, "own": run.state.own}))
    for name, column in run.history.arrays().items():
        if name != "seconds":
            found[f"history/{name}"] = torch.from_numpy(column)
    return found


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def differ(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() != b.keys() or any(
        a[n].shape != b[n].shape or not torch.allclose(a[n].double(), b[n].double(), rtol=1e-4, atol=1e-6, equal_nan=True)
        for n in a
    )


def served(run: Run) -> list[dict[str, Tensor]]:
    """The weights that each client would use now; of a mixture, those of the model that weighs most in it."""
    modules = [run.model_of(i) for i in range(run.settings["federation"]["clients"])]
    heaviest = [m.models[int(m.log_weights.argmax())] if isinstance(m, ServedModel) else m for m in modules]
    return [dict(module.state_dict()) for module in heaviest]


def initial(model: Any = mlp, seed: int = 3) -> Tree:
    """The parameters that a run with this seed starts from: those of a run that hardly moves."""
    still = train(fedfew.FedAvg(), model=model, rounds=1, lr=1e-30, seed=seed)
    return {name: t.detach() for name, t in still.models[0].state_dict().items()}


# -- a linear classifier by hand: θ is [classes, features + 1], the last column the bias -----------------------------------------


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


FULL_BATCH: dict[str, Any] = PLAIN | {"model": linear, "batch_size": 100, "rounds": 2, "local_epochs": 2, "lr": 0.5}
"""Every epoch is one step on all samples, so the order of samples does not matter."""


def theta(state: Any) -> Tensor:
    return torch.cat([state["weight"], state["bias"].unsqueeze(-1)], -1).double().detach()


def gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """∇ of the mean cross-entropy: (softmax(x θᵀ) − one-hot(y))ᵀ x / n."""
    x = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    return ((x @ theta.T).softmax(1) - torch.eye(CLASSES, dtype=torch.float64)[y]).T @ x / len(y)


def loss_of(theta: Tensor, x: Tensor, y: Tensor) -> float:
    x = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    return float(-(x @ theta.T).log_softmax(1)[torch.arange(len(y)), y].mean())


def descend(theta: Tensor, x: Tensor, y: Tensor, pull: float = 0.0, to: Tensor | None = None) -> Tensor:
    """A round's two steps on loss + pull/2·‖θ − to‖²."""
    for _ in range(FULL_BATCH["local_epochs"]):
        slope = gradient(theta, x, y)
        if to is not None:
            slope = slope + pull * (theta - to)
        theta = theta - FULL_BATCH["lr"] * slope
    return theta


def clients_of(data: Federation) -> list[tuple[Tensor, Tensor]]:
    return [data.train.of(i) for i in range(len(data))]


def mean_by_samples(models: list[Tensor], data: Federation) -> Tensor:
    counts = data.train.count.double()
    return torch.einsum("i,i...->...", counts / counts.sum(), torch.stack(models))


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-4, atol=1e-5)
