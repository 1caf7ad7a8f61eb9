"""One adapter read back: its tensors in the base model that the reader gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedfew.adapters import TrainedPart
from fedfew.export import model_file
from fedfew.models import ModelFactory
from fedfew.models.state import frozen_hash, holding, replica_state
from fedfew.stack import named_leaves
from fedfew.training.initialisation import frozen_parameters
from fedfew.util.printable import printable

PREFIX = "base_model.model."  # of names in a folder of peft's


def load_adapter(path: Path, card: Mapping[str, Any], base: ModelFactory | None) -> nn.Module:
    """The adapter in a file of an export, in the base model, in evaluation mode; the base must be that of the training.

    base: a function that returns it, needed where it is no model of fedfew's own.
    """
    factory = model_file.factory(card["model"], base)
    factory = holding(factory, dict(named_leaves(frozen_parameters(factory, card["training"]["seed"]))))
    module = factory()
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    if TrainedPart.recorded(card["model"]).adapters is None:
        _load_by_peft(path, module, tensors)
    else:
        _load(path, module, {name.removeprefix(PREFIX): value for name, value in tensors.items()})
    if frozen_hash(module) != card["adapters"]["base_sha256"]:
        raise ValueError(
            f"the base model given is not the one that the adapters were trained with ({printable(card['adapters']['base'])}): "
            "the hash of its frozen parameters differs from base_sha256 in card.json"
        )
    return module.eval()


def _load(path: Path, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    state = module.state_dict()
    wrong = [name for name in tensors if name not in state or state[name].shape != tensors[name].shape]
    wrong += [name for name in replica_state(module) if name not in tensors]
    if wrong:
        raise ValueError(f"{path} does not fit the base model given: {', '.join(sorted(wrong)[:5])}")
    module.load_state_dict(dict(tensors), strict=False)


def _load_by_peft(path: Path, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    if not hasattr(module, "peft_config"):
        raise ValueError(f"{path} is an adapter of peft's: give a function that returns the same PeftModel as in training")
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(module, dict(tensors))
