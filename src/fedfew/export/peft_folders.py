"""Adapters as folders of peft's, which ``peft.PeftModel.from_pretrained`` and servers of many adapters load beside one base.

adapter-0/adapter_model.safetensors   A and B of every layer, and the head where it was trained
adapter-0/adapter_config.json         rank, alpha, layers
routes.json                           the adapter of each client, or the weights of its mixture

The other files are those of any export (:mod:`fedfew.export.folder`). The base model is not written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedfew.adapters import LoRA, TrainedPart
from fedfew.adapters.frozen import head_of
from fedfew.adapters.lora import AdaptedLayer
from fedfew.data import tensorfile
from fedfew.export import vllm
from fedfew.export.adapter_file import PREFIX
from fedfew.export.folder import WholeModels, write_as
from fedfew.models.state import frozen_hash
from fedfew.training.run import Run

WHOLE = "write whole models (fedfew.export.write, fedfew export without --peft)"


def write_adapters(
    run: Run,
    folder: str | Path,
    base: str = "BASE",
    *,
    about: Mapping[str, Any] | None = None,
    force: bool = False,
    anonymous: bool = False,
) -> Path:
    """Write the K adapters of a run and their card to a folder that is not there yet.

    base: the name or folder of the base model's weights, which are not written. The others: as for :func:`fedfew.export.write`.
    """
    lora, modules = TrainedPart.recorded(run.settings).adapters, run.models
    if not modules or (lora is None and not hasattr(modules[0], "save_pretrained")):
        raise ValueError("the run has no adapters on the server: train with adapters=LoRA(…), or a model of peft's")
    if not run.serves_server_models:
        raise ValueError(f"clients of {run.settings['method']['name']} use models of their own, so there are no routes to write")
    if lora is not None:
        _check(modules[0])
    return write_as(PeftFolders(lora, base), run, folder, about or {}, force, anonymous)


@dataclass(frozen=True)
class PeftFolders(WholeModels):
    """One folder per adapter. lora: None for a model of peft's."""

    lora: LoRA | None
    base: str

    def file(self, k: int) -> str:
        return f"adapter-{k}/adapter_model.safetensors"

    def about(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        config = self._config(modules[0])
        kind = getattr(getattr(modules[0], "config", None), "model_type", None)  # of transformers
        return {
            "adapters": {
                "base": self.base,
                "base_sha256": frozen_hash(modules[0]),
                "rank": vllm.largest_rank(config),
                "head": ((config.get("modules_to_save") or [""])[0] or "").removeprefix(PREFIX) or None,
                "not_on_vllm": vllm.refusal(config, kind),
            }
        }

    def _config(self, module: nn.Module) -> dict[str, Any]:
        """What adapter_config.json holds."""
        if self.lora is not None:
            return _config(module, self.lora, self.base)
        config: Any = next(iter(module.peft_config.values()))  # type: ignore[operator]  # a dict of peft's
        return {name: getattr(value, "value", value) for name, value in config.to_dict().items()}  # some are enumerations

    def write(self, place: Path, k: int, module: nn.Module, card: Mapping[str, Any]) -> None:
        folder = (place / self.file(k)).parent
        if self.lora is None:
            module.save_pretrained(str(folder))  # type: ignore[operator]  # a method of peft's
        else:
            _write(folder, module, self.lora, self.base)

    def write_routes(self, place: Path, run: Run, served: Mapping[str, Tensor]) -> None:
        names = [Path(self.file(k)).parent.name for k in range(len(run.models))]
        uses: list[Any] = [names[k] for k in served["choice"].tolist()]
        if "mixture" in served:
            uses = [dict(zip(names, weights, strict=True)) for weights in served["mixture"].tolist()]
        routes = {run.data.client_name(i): one for i, one in enumerate(uses)}
        (place / "routes.json").write_text(json.dumps(routes, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _check(module: nn.Module) -> None:
    """Refuse adapters of which peft would compute something else, or that it does not load."""
    layers = _layers(module)
    names: dict[int, str] = {}
    for name, layer in layers.items():
        other = names.setdefault(id(layer.base), name)
        if other != name:
            raise ValueError(f"{other} and {name} are one layer, of which peft adapts one alone: {WHOLE}")
        base = layer.base
        if isinstance(base, nn.Conv2d) and (base.padding_mode != "zeros" or set(base.dilation) != {1}):
            has = f"padding_mode {base.padding_mode!r} and dilation {base.dilation}"
            raise ValueError(f"{name} has {has}, but peft's adapters pad with zeros and have no dilation: {WHOLE}")
    if not layers:
        raise ValueError(f"the head alone was trained, and peft loads no adapters of no layer: {WHOLE}")


def _trained_head(module: nn.Module, lora: LoRA) -> str | None:
    """The name of the head, where it was trained: one that shares its weights with the embedding was not."""
    head = head_of(module) if lora.train_head else None
    return head if head is not None and any(p.requires_grad for p in module.get_submodule(head).parameters()) else None


def _layers(module: nn.Module) -> dict[str, AdaptedLayer]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, AdaptedLayer)}


def _config(module: nn.Module, lora: LoRA, base: str) -> dict[str, Any]:
    layers, head = _layers(module), _trained_head(module, lora)
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(layers),
        "modules_to_save": None if head is None else [_saved(module, head)],
        "bias": "none",
        "fan_in_fan_out": any(layer.transposed for layer in layers.values()),
        "inference_mode": True,
    }


def _saved(module: nn.Module, head: str) -> str:
    """The head as peft is told its name. It takes every module whose name ends like that, so the name is written in full where
    there is another one, as pre_classifier of DistilBERT."""
    alike = [name for name, _ in module.named_modules(remove_duplicate=False) if name.endswith(head)]
    return head if alike == [head] else PREFIX + head


def _write(folder: Path, module: nn.Module, lora: LoRA, base: str) -> None:
    tensors = {}
    for name, layer in _layers(module).items():
        for factor in ("lora_A", "lora_B"):
            tensors[f"{PREFIX}{name}.{factor}.weight"] = getattr(layer, factor).weight.detach().cpu().contiguous().clone()
    head = _trained_head(module, lora)
    if head is not None:
        for name, value in module.get_submodule(head).state_dict().items():
            tensors[f"{PREFIX}{head}.{name}"] = value.detach().cpu().contiguous().clone()
    folder.mkdir(parents=True)
    tensorfile.save(folder / "adapter_model.safetensors", tensors, {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(_config(module, lora, base), indent=1) + "\n", encoding="utf-8")
