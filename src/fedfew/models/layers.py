"""Layers of a module replaced by others, or made others that compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from typing import TypeVar, cast

from torch import nn

Layer = TypeVar("Layer", bound=nn.Module)


def replace_layers(module: nn.Module, twin: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """The module itself, each layer replaced by ``twin(name, layer)`` where that is one; where it is a layer itself, its twin.

    A layer that is in several places (one ``nn.Dropout`` for a whole network) has one twin, which is then in all of them.
    """
    found = {layer: twin(name, layer) for name, layer in list(module.named_modules())}
    twins = {layer: made for layer, made in found.items() if made is not None}
    for parent in found:
        for name, child in parent._modules.items():  # named_children leaves out what has come before
            if child in twins:
                setattr(parent, name, twins[child])
    return twins.get(module, module)


def become(layer: nn.Module, kind: type[Layer]) -> Layer:
    """The layer itself as one of another kind: its hooks stay, and whoever refers to it has the new one, as a list of layers."""
    layer.__class__ = kind
    return cast(Layer, layer)


def has_hooks(layer: nn.Module) -> bool:
    """Does anything happen before or after its forward, or to gradients that flow through it?"""
    return bool(layer._forward_pre_hooks or layer._forward_hooks or layer._backward_pre_hooks or layer._backward_hooks)


def apart(module: nn.Module) -> nn.Module:
    """The module itself, in which no layer with parameters or buffers is in two places: in all but the first is one that has the
    same parameters and buffers. PyTorch's ``functional_call`` leaves the tensors that it was given in a layer with two names."""
    _put_apart(module, {module})
    return module


def _put_apart(parent: nn.Module, seen: set[nn.Module]) -> None:
    for name, child in list(parent._modules.items()):
        if child is None or next(chain(child.parameters(), child.buffers()), None) is None:
            continue
        if child in seen:
            child = copy.copy(child)
            for held in ("_parameters", "_buffers", "_modules"):
                child.__dict__[held] = dict(child.__dict__[held])
            setattr(parent, name, child)
        seen.add(child)
        _put_apart(child, seen)
