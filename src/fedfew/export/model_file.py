"""One model in one file: its state as plain safetensors, and a note of how to build the module it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfew import methods
from fedfew.adapters import TrainedPart
from fedfew.data import tensorfile
from fedfew.methods import FedAvg
from fedfew.models import ModelFactory
from fedfew.models.own import OwnModel
from fedfew.models.recorded import named_factory
from fedfew.models.served import ServedModel, with_prior
from fedfew.training.batch_norm_policy import with_policy
from fedfew.training.data_record import DataRecord
from fedfew.training.new_client import NewClient
from fedfew.training.sample_format import SampleFormat


def write(path: Path, module: nn.Module, about: Mapping[str, Any], log_prior: Tensor | None = None) -> None:
    """Write the module's state, whole or not at all; ``about["model"]`` says how to build it.

    log_prior: what is to be added to its logits; kept in the description, so that the tensors are a plain state dict.
    """
    prior = {} if log_prior is None else {"log_prior": log_prior.tolist()}
    tensorfile.write(path, {name: t.clone() for name, t in module.state_dict().items()}, dict(about) | prior)


def load_model(path: str | Path, model: ModelFactory | None = None) -> nn.Module:
    """The model in a file of an export, one that ``fedfew select -o`` wrote (with its label prior), or the one that a site of a
    Flower run uses, in evaluation mode.

    model: needed only if it is a module of the user's own: the same zero-argument callable.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(
            f"{path} is a folder, but load_model reads a single file, as models/model-0.safetensors: fedfew.export.read reads an "
            "export, and fedfew.load a run"
        )
    tensors, about = tensorfile.read(Path(path))
    make = factory(about["model"], model)
    module = make()
    if about.get("served"):
        mixed = [module, *(make() for _ in tensors["log_weights"][1:])]
        module = ServedModel(mixed, log_prior=tensors.get("log_prior"), task=about["model"]["task"])
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the module given: {' '.join(str(error).split())}") from error
    prior = about.get("log_prior")
    return with_prior(module, None if prior is None else torch.tensor(prior)).eval()


def selected(path: str | Path, model: ModelFactory | None = None) -> NewClient:
    """The model in a file of ``fedfew select -o`` or of a site: predicts from raw data to names. ``model`` as for load_model."""
    about = note(path)
    record = DataRecord.from_document(about.get("data", {"class_names": about["model"].get("class_names", ())}))
    return NewClient(load_model(path, model), record, SampleFormat.of(about["model"]))


def note(path: str | Path) -> dict[str, Any]:
    """What a file holds besides the parameters of its model."""
    return tensorfile.read(Path(path))[1]


def factory(about: Mapping[str, Any], own: ModelFactory | None = None) -> ModelFactory:
    """How to build a model, from its entry on an export's card."""
    plain = OwnModel(own) if own is not None else named_factory({"model": about["name"], "federation": dict(about)})
    method = methods.make(**about.get("method", {"name": FedAvg.name}))  # a site's: modules of kNN-Per have a memory
    return with_policy(about["batch_norm"], TrainedPart.recorded(about).of(plain), method)[0]
