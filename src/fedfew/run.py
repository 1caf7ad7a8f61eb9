"""The result of training: models, who uses which, and how it went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew import checkpoint, methods, models
from fedfew.checkpoint import State
from fedfew.engines.base import evaluation_batches
from fedfew.federation import Pixels, as_input
from fedfew.history import History
from fedfew.methods import Method
from fedfew.normalisation import with_policy
from fedfew.stack import Tree, leaves, named_leaves, take

ModelFactory = Callable[[], nn.Module]


class Run:
    """A finished (or interrupted) training run."""

    def __init__(self, state: State, factory: ModelFactory, method: Method) -> None:
        self.state = state
        self.method = method
        self._factory = factory

    @property
    def settings(self) -> dict[str, Any]:
        """Everything the run was started with."""
        return self.state.settings

    @property
    def history(self) -> History:
        return self.state.history

    @property
    def round(self) -> int:
        """The last round completed."""
        return self.state.round

    @property
    def models(self) -> list[nn.Module]:
        """The server's K models, in evaluation mode; empty for a method that keeps none there."""
        return self._modules(self.method.server_models(self.state.server))

    @property
    def choice(self) -> Tensor:
        """For each client, which of the models served to it fits its training data best."""
        return torch.from_numpy(self.history.choice[-1])

    def model_of(self, client: int) -> nn.Module:
        """The model that a client uses, in evaluation mode."""
        here = torch.tensor([client])
        received = self.method.dispatch(self.state.server, here)
        try:
            candidates = take(self.method.serve(received, take(self.state.own, here)), 0)
            return self._modules(candidates)[int(self.choice[client])]
        except (IndexError, KeyError):
            if not self.state.sites or self.state.own:
                raise
            raise ValueError(f"client {client} keeps a model of its own at its site, which the server does not know") from None

    def save(self, folder: str | Path) -> Path:
        """Write the run to a folder; :func:`fedfew.load` reads it back."""
        return checkpoint.write(Path(folder), self.state)

    def _modules(self, stacked: Tree) -> list[nn.Module]:
        modules = []
        for k in range(len(leaves(stacked)[0]) if stacked else 0):
            module = self._factory()
            module.load_state_dict(dict(named_leaves(take(stacked, k))))
            modules.append(module.eval())
        return modules

    def __repr__(self) -> str:
        s = self.settings
        return (
            f"<Run {s['method']['name']} on {s['federation']['name']}: round {self.round} of {s['rounds']}, "
            f"{s['federation']['clients']} clients>"
        )


def load(folder: str | Path, model: ModelFactory | None = None) -> Run:
    """The run saved in a folder (its newest intact checkpoint).

    model: needed only where the run was made with a module of your own: the same zero-argument callable.
    """
    state, _ = checkpoint.read_newest(Path(folder))
    settings = state.settings
    factory, method = model or named_factory(settings), methods.make(**settings["method"])
    return Run(state, *with_policy(settings.get("batch_norm", "average"), factory, method))


def named_factory(settings: dict[str, Any]) -> ModelFactory:
    """The factory of a run whose model has a name."""
    name, data = settings["model"], settings["federation"]
    if name not in models.MODELS:
        raise ValueError(
            f"the run was made with the module {name!r}, which is not one of fedfew's own: pass it as model=… "
            "(a zero-argument callable)"
        )
    return lambda: models.build(name, tuple(data["shape"]), data["classes"], data.get("vocabulary"))


@dataclass(frozen=True)
class Fit:
    """How well one model fits some samples."""

    loss: float  # mean cross-entropy
    accuracy: float


def fit(models: Sequence[nn.Module], x: Any, y: Any, *, pixels: Pixels = "symmetric") -> list[Fit]:
    """How well each of the models fits these samples.

    pixels: what bytes become on their way into a model, as in the federation that the models were trained on.
    """
    inputs, labels = as_input(torch.as_tensor(x), pixels), torch.as_tensor(y).long()
    if inputs.is_floating_point():
        inputs = inputs.to(torch.float32)
    if len(inputs) == 0 or len(inputs) != len(labels):
        raise ValueError(f"x and y must hold the same number (≥ 1) of samples, not {len(inputs)} and {len(labels)}")
    fits = []
    with torch.no_grad():
        for module in models:
            module.eval()
            logits = torch.cat([module(part) for part in evaluation_batches(inputs)])
            accuracy = (logits.argmax(1) == labels).double().mean()
            fits.append(Fit(float(F.cross_entropy(logits, labels)), float(accuracy)))
    return fits


def select(models: Sequence[nn.Module], x: Any, y: Any, *, pixels: Pixels = "symmetric") -> int:
    """Which of the models fits these samples best (least mean loss): how a client that never took part chooses."""
    if not models:
        raise ValueError("models is empty: there is nothing to choose from")
    losses = [one.loss for one in fit(models, x, y, pixels=pixels)]
    return losses.index(min(losses))
