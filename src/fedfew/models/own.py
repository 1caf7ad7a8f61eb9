"""Modules of the user's own: an instance or a factory, whatever form its outputs have."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils import _pytree as pytree

from fedfew.models.attention_mask import add_attention_mask

_OLD = "has a layer with torch.nn.utils.{0}, which cannot be copied: use torch.nn.utils.parametrizations.{0}"


@dataclass(frozen=True)
class OwnModel:
    """Makes modules that return a tensor ``[N, outputs]``: of a factory, new ones; of an instance, copies with its weights."""

    model: nn.Module | Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        module = self.model if isinstance(self.model, nn.Module) else self._made(self.model)
        _check_copyable(module)
        module = copy.deepcopy(module) if module is self.model else module
        for layer in module.modules():
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                layer.sparse = False  # gradients are the same, and few optimisers take sparse ones
        if plain_output not in module._forward_hooks.values():
            module.register_forward_hook(plain_output)
        elif not isinstance(self.model, nn.Module):  # handed out before: several models in one module would overwrite each other
            module = copy.deepcopy(module)
        add_attention_mask(module)
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            raise ValueError(
                f"model: {type(module).__name__} has lazy layers, whose parameters have no shape yet: call it on a sample first, "
                "inside the function that returns it"
            )
        return module

    def _made(self, factory: Callable[[], nn.Module]) -> nn.Module:
        name = getattr(factory, "__name__", repr(factory))
        try:
            inspect.signature(factory).bind()
        except TypeError as error:
            raise TypeError(f"model must be a function without arguments that returns a module; {name}: {error}") from None
        except ValueError:  # of a function written in C, whose arguments are not known
            pass
        made = factory()
        if not isinstance(made, nn.Module):
            raise TypeError(
                f"model must be a name, a module or a function without arguments that returns one; {name} returned "
                f"{type(made).__name__}"
            )
        return made


def _check_copyable(module: nn.Module) -> None:
    """Refuse a module that cannot be copied: an attribute of it is the result of a computation on its parameters."""
    name = type(module).__name__
    for layer in module.modules():
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                raise ValueError(f"model: {name} {_OLD.format('weight_norm')}")
            if isinstance(hook, SpectralNorm):
                raise ValueError(f"model: {name} {_OLD.format('spectral_norm')}, with engine='sequential', 'threaded' or 'auto'")
        for attribute, value in {**layer._buffers, **layer.__dict__}.items():
            if any(isinstance(part, Tensor) and not part.is_leaf for part in pytree.tree_leaves(value)):
                raise ValueError(
                    f"model: {type(layer).__name__}.{attribute} is computed from parameters, so copies of {name} would "
                    f"not have it: compute it in forward, or keep a value that is not trained, {attribute}.detach()"
                )


def plain_output(module: nn.Module, inputs: Any, output: Any) -> Tensor:
    """The tensor in what a module returns: a tensor, something with ``logits`` (as Hugging Face's), or the first of a tuple."""
    found = output
    if isinstance(output, Mapping) and "logits" in output:
        found = output["logits"]
    elif isinstance(getattr(output, "logits", None), Tensor):
        found = output.logits
    elif isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise TypeError(
            f"model: {type(module).__name__} returned {type(output).__name__}, in which there is no tensor of outputs: return a "
            "tensor, a tuple that begins with one, or logits by that name"
        )
    return found if found.ndim != 1 else found[:, None]
