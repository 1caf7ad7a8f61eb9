"""Which part of a model is trained: all that requires a gradient, adapters and the head, or the head alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedfew.adapters.frozen import freeze, head_of
from fedfew.adapters.lora import AdaptedLayer, LoRA
from fedfew.config import Freeze, TrainConfig
from fedfew.models import ModelFactory


@dataclass(frozen=True)
class TrainedPart:
    """adapters: LoRA, or None for none. freeze: "body" for all but the head, the last linear layer."""

    adapters: LoRA | None = None
    freeze: Freeze = "none"

    def __post_init__(self) -> None:
        if self.adapters is not None and self.freeze == "body":
            raise ValueError("adapters and freeze='body' exclude each other: adapters freeze all but the head already")

    @classmethod
    def named(cls, adapters: str | LoRA | None, freeze: Freeze) -> TrainedPart:
        """From the values of the two settings."""
        if isinstance(adapters, str):
            return cls(None if adapters == "none" else LoRA.parse(adapters), freeze)
        if adapters is not None and not isinstance(adapters, LoRA):
            raise TypeError(f"adapters must be fedfew.adapters.LoRA(…), its text or None, not {type(adapters).__name__}")
        return cls(adapters, freeze)

    @classmethod
    def recorded(cls, settings: Mapping[str, Any]) -> TrainedPart:
        """As it is in the settings of a run or of an export."""
        return cls.named(settings.get("adapters", "none"), settings.get("freeze", "none"))

    def settings(self) -> dict[str, Any]:
        """The values of the two settings, always written in the same way."""
        return {"adapters": "none" if self.adapters is None else str(self.adapters), "freeze": self.freeze}

    def document(self) -> dict[str, Any]:
        """Those of them that are not none."""
        return {name: value for name, value in self.settings().items() if value != "none"}

    def of(self, factory: ModelFactory) -> ModelFactory:
        """The factory of modules of which this part is trained. Their initial weights depend on torch's global random state,
        which is the same afterwards: what the user draws does not depend on how many modules were made."""

        def make() -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                return self._applied(factory())

        return make

    def _applied(self, module: nn.Module) -> nn.Module:
        if self.adapters is not None:
            return self.adapters.adapt(module)
        return freeze(module, (head_of(module),)) if self.freeze == "body" else module

    def check(self, config: TrainConfig) -> None:
        """Refuse what features that are computed once cannot have."""
        for name, none in (("augment", "none"), ("mixup", 0)):
            value = getattr(config, name)
            if self.freeze == "body" and value != none:
                raise ValueError(f"{name} is {value!r}, but freeze='body' computes features once: it must be {none!r}")

    def notes(self, module: nn.Module) -> list[str]:
        """One line about a module of this factory's, unless all of it is trained."""
        if not self.document():
            return []
        trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
        total = sum(p.numel() for p in module.parameters())
        lines = [f"{next(iter(self.document()))}: {trained:,} of {total:,} numbers are trained and sent; the rest is held once"]
        if self.adapters is not None and self.adapters.targets != () and not _adapted(module):
            lines.append("adapters: the model has no layer for them besides the head, which is trained as without them")
        if self.adapters is not None and self.adapters.train_head and not any(p.requires_grad for p in _head(module)):
            lines.append(f"adapters: the head, {head_of(module)}, shares its weights with another layer and stays frozen")
        return lines


def _adapted(module: nn.Module) -> bool:
    return any(isinstance(layer, AdaptedLayer) for layer in module.modules())


def _head(module: nn.Module) -> Iterator[nn.Parameter]:
    return module.get_submodule(head_of(module)).parameters()
