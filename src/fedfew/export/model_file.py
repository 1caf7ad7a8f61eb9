"""One model in one file: its state as plain safetensors, and a note of how to build the module it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedfew.data import tensorfile
from fedfew.methods import FedAvg
from fedfew.models import ModelFactory
from fedfew.training.batch_norm_policy import with_policy
from fedfew.training.run import named_factory


def write(path: Path, module: nn.Module, about: Mapping[str, Any]) -> None:
    """Write the module's state, whole or not at all; ``about["model"]`` says how to build it."""
    tensorfile.write(path, {name: t.clone() for name, t in module.state_dict().items()}, about)


def load_model(path: str | Path, model: ModelFactory | None = None) -> nn.Module:
    """The model in a file of an export, or one that ``fedfew select -o`` wrote, in evaluation mode.

    model: needed only where it is a module of somebody's own: the same zero-argument callable.
    """
    tensors, about = tensorfile.read(Path(path))
    module = factory(about["model"], model)()
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the module given: {' '.join(str(error).split())}") from error
    return module.eval()


def note(path: str | Path) -> dict[str, Any]:
    """What a file says of its model besides the parameters."""
    return tensorfile.read(Path(path))[1]


def factory(about: Mapping[str, Any], own: ModelFactory | None = None) -> ModelFactory:
    """How to build a model, from what an export's card says of it."""
    plain = own or named_factory({"model": about["name"], "federation": dict(about)})
    return with_policy(about["batch_norm"], plain, FedAvg())[0]
