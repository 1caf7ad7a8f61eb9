"""LoRA (Hu et al., 2022): a frozen layer W and a trained product of two small ones, W·x + α/rank · B·(A·x).

A starts at random and B at zero, so training starts at the frozen model. The server averages A and B apart, but the mean of the
products B_i·A_i is not the product of the means: clients do not get the mean of what they learned. With ``average="freeze-a"``
(FFA-LoRA, Sun et al., 2024) A stays at its random start, the same for all clients and models; the product is then linear in what
is trained, its mean is exact, and half is sent. With ``average="product"`` the server averages the products and factors the mean
to the rank again (docs/adapters.md): exact where the mean has no higher rank, else the nearest of that rank.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from typing import Any, Literal, Self, get_type_hints

import torch
from torch import Tensor, nn

from fedfew.adapters.frozen import freeze, head_of, replaced
from fedfew.util.conversion import convert
from fedfew.util.spelling import unknown


@dataclass(frozen=True)
class LoRA:
    """Which layers get adapters, and of what size.

    rank: of the product B·A. alpha: the product is multiplied by alpha/rank. dropout: on what enters the adapters, in training.
    targets: names of layers, or the last parts of names; * stands for anything. None: every ``nn.Linear`` (and ``Conv1D`` of
        transformers, the same) and every ``nn.Conv2d`` of one group, but for the head where that is trained.
    train_head: train the last linear layer in full, without an adapter. average: "ab" trains and averages A and B, "freeze-a"
        only B; "product" trains both and averages their product.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: Sequence[str] | None = None
    train_head: bool = True
    average: Literal["ab", "freeze-a", "product"] = "ab"

    def __post_init__(self) -> None:
        if isinstance(self.targets, str):
            raise ValueError(f"LoRA: targets must be a list of names, as [{self.targets!r}], not a string")
        if self.targets is not None:
            object.__setattr__(self, "targets", tuple(self.targets))
            if wrong := [name for name in self.targets if not name or "+" in name or "," in name]:
                raise ValueError(f"LoRA: {wrong[0]!r} in targets is no name of a layer")
        if self.rank < 1:
            raise ValueError(f"LoRA: rank must be at least 1, not {self.rank}")
        if not self.alpha > 0:
            raise ValueError(f"LoRA: alpha must be above 0, not {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"LoRA: dropout must be at least 0 and below 1, not {self.dropout}")
        if self.average not in ("ab", "freeze-a", "product"):
            raise ValueError(f"LoRA: average must be 'ab', 'freeze-a' or 'product', not {self.average!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text of the setting ``adapters``, as ``lora:rank=8,targets=query+value``."""
        hints, values = get_type_hints(cls), dict[str, Any]()
        _, _, rest = text.partition(":")
        for piece in filter(None, rest.split(",")):
            name, _, value = (part.strip() for part in piece.partition("="))
            if name not in hints:
                raise unknown("setting of lora called", name, hints)
            named = f"{name} in adapters"
            values[name] = tuple(filter(None, value.split("+"))) if name == "targets" else convert(value, hints[name], named)
        return cls(**values)

    def __str__(self) -> str:
        """The text from which :meth:`parse` makes it again; settings that have their default are left out."""
        changed = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        pieces = [f"{name}={'+'.join(v) if name == 'targets' else _plain(v)}" for name, v in changed.items()]
        return ":".join(filter(None, ["lora", ",".join(pieces)]))

    def adapt(self, module: nn.Module) -> nn.Module:
        """The module itself, frozen, with adapters."""
        if any(isinstance(layer, AdaptedLayer) for layer in module.modules()):
            raise ValueError("adapters: the model already has adapters: leave adapters out, and these are trained")
        if hasattr(module, "peft_config"):
            raise ValueError("adapters: the model already has adapters of peft's; leave adapters out, and these are trained")
        head = head_of(module) if self.train_head else None
        names = self._targets(module, head)
        freeze(module, () if head is None else (head,))
        layers = dict(module.named_modules(remove_duplicate=False))
        of_layers: dict[int, AdaptedLayer] = {}
        for name in names:
            layer = layers[name]
            adapter = AdaptedLayer(layer, self)
            adapter.share(of_layers.setdefault(id(layer), adapter))  # a layer with several names has one A and one B
            module = replaced(module, name, adapter)
        return module

    def _targets(self, module: nn.Module, head: str | None) -> list[str]:
        able = [name for name, layer in module.named_modules(remove_duplicate=False) if _adaptable(layer) and name != head]
        if self.targets is None:
            return able
        for pattern in self.targets:
            if not any(_named(name, pattern) for name in able):
                raise ValueError(f"LoRA: no layer in targets is called {pattern!r}; there are {', '.join(able) or 'none'}")
        return [name for name in able if any(_named(name, pattern) for pattern in self.targets)]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")


def _adaptable(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1
    return type(layer) is nn.Linear or _is_transposed(layer)  # attention reads the weights of its own kind, and does not call it


def _is_transposed(layer: nn.Module) -> bool:
    """Is it ``Conv1D`` of transformers, the linear layer of GPT-2, whose weight is [in, out]?"""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


def _named(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(name, f"*.{pattern}")


class AdaptedLayer(nn.Module):
    """A frozen linear layer or convolution, plus alpha/rank · B·A."""

    base: nn.Linear | nn.Conv2d

    def __init__(self, base: nn.Module, lora: LoRA) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)  # type: ignore[assignment]  # others were not chosen, but Conv1D, which is alike
        base, self.transposed = self.base, _is_transposed(base)
        self.scale = lora.alpha / lora.rank
        self.dropout = nn.Dropout(lora.dropout)
        like: dict[str, Any] = {"bias": False, "device": base.weight.device, "dtype": base.weight.dtype}
        if isinstance(base, nn.Conv2d):
            same: dict[str, Any] = {
                name: getattr(base, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
            }
            self.lora_A: nn.Linear | nn.Conv2d = nn.Conv2d(base.in_channels, lora.rank, **same, **like)
            self.lora_B: nn.Linear | nn.Conv2d = nn.Conv2d(lora.rank, base.out_channels, 1, **like)
        else:
            outputs, inputs = base.weight.shape if not self.transposed else base.weight.shape[::-1]
            self.lora_A = nn.Linear(inputs, lora.rank, **like)
            self.lora_B = nn.Linear(lora.rank, outputs, **like)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.lora_A.requires_grad_(lora.average != "freeze-a")

    def share(self, other: AdaptedLayer) -> None:
        """Have the same A and B as another; not the same modules, which ``functional_call`` cannot take under two names."""
        self.lora_A.weight, self.lora_B.weight = other.lora_A.weight, other.lora_B.weight

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base(x)
        return base + self.scale * self.lora_B(self.lora_A(self.dropout(x)))

    @property
    def weight(self) -> Tensor:
        """The weight of a plain layer that does the same; some modules read it in place of calling the layer."""
        product = self.lora_B.weight.flatten(1) @ self.lora_A.weight.flatten(1)
        return self.base.weight + self.scale * (product.mT if self.transposed else product.view_as(self.base.weight))

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias


@torch.no_grad()
def merged(module: nn.Module) -> nn.Module:
    """A copy of the module, every adapted layer in it replaced by a plain one that gives the same outputs."""
    module, done = copy.deepcopy(module), set[int]()
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, AdaptedLayer):
            if id(layer.base) not in done:  # a layer with several names is merged once
                done.add(id(layer.base))
                layer.base.weight = nn.Parameter(layer.weight, requires_grad=False)
            module = replaced(module, name, layer.base)
    return module
