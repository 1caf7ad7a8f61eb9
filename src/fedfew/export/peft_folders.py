"""Adapters as folders of peft's, which ``peft.PeftModel.from_pretrained`` and servers of many adapters load beside one base.

adapter-0/adapter_model.safetensors   A and B of every layer, and the head where it was trained
adapter-0/adapter_config.json         rank, alpha, layers
routes.json                           the adapter of each client
README.md                             how to load and to serve them
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from fedfew.adapters import LoRA, TrainedPart
from fedfew.adapters.frozen import head_of
from fedfew.adapters.lora import AdaptedLayer
from fedfew.training.run import Run
from fedfew.util.files import folder_written_atomically

PREFIX = "base_model.model."  # of names in a folder of peft's


def write_adapters(run: Run, folder: str | Path, base: str = "BASE") -> Path:
    """Write the K adapters of a run to a folder that is not there yet.

    base: the name or folder of the base model's weights, which are not written.
    """
    place, lora, modules = Path(folder), TrainedPart.recorded(run.settings).adapters, run.models
    if place.exists():
        raise ValueError(f"{place} already exists: choose another folder")
    if not modules or (lora is None and not hasattr(modules[0], "save_pretrained")):
        raise ValueError("the run has no adapters on the server: train with adapters=LoRA(…), or a model of peft's")
    if not run.serves_server_models or not run.has_choice or run.state.mixture is not None or run.state.priors:
        raise ValueError("the run's clients do not use one of the server's models each as it is, so there are no routes to write")
    names = [f"adapter-{k}" for k in range(len(modules))]
    with folder_written_atomically(place) as partial:
        for name, module in zip(names, modules, strict=True):
            if lora is None:
                module.save_pretrained(str(partial / name))  # type: ignore[operator]  # a method of peft's
            else:
                _write(partial / name, module, lora, base)
        routes = {run.data.client_name(i): names[k] for i, k in enumerate(run.choice.tolist())}
        (partial / "routes.json").write_text(json.dumps(routes, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        config = json.loads((partial / names[0] / "adapter_config.json").read_text(encoding="utf-8"))
        (partial / "README.md").write_text(_readme(names, base, config), encoding="utf-8")
    return place


def _write(folder: Path, module: nn.Module, lora: LoRA, base: str) -> None:
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, AdaptedLayer)}
    tensors = {}
    for name, layer in layers.items():
        for factor in ("lora_A", "lora_B"):
            tensors[f"{PREFIX}{name}.{factor}.weight"] = getattr(layer, factor).weight.detach().cpu().contiguous().clone()
    head = head_of(module) if lora.train_head else None
    if head is not None and not any(p.requires_grad for p in module.get_submodule(head).parameters()):
        head = None  # it shares its weights with the embedding, and was not trained
    if head is not None:
        for name, value in module.get_submodule(head).state_dict().items():
            tensors[f"{PREFIX}{head}.{name}"] = value.detach().cpu().contiguous().clone()
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(layers),
        "modules_to_save": None if head is None else [head],
        "bias": "none",
        "fan_in_fan_out": any(layer.transposed for layer in layers.values()),
        "inference_mode": True,
    }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _readme(names: list[str], base: str, config: dict[str, Any]) -> str:
    head = (
        "\nThese adapters contain a trained head (`modules_to_save`), which vLLM does not take: serve them with peft, or train "
        "with `LoRA(train_head=False)`.\n"
        if config.get("modules_to_save")
        else ""
    )
    return f"""# {len(names)} adapters for one base model

`routes.json` has the adapter of each client.

```python
from peft import PeftModel

model = PeftModel.from_pretrained(base_model, "{names[0]}")
```

```bash
vllm serve {base} --enable-lora --max-lora-rank {config["r"]} --lora-modules {" ".join(f"{name}=./{name}" for name in names)}
```
{head}"""
