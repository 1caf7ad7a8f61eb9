"""A model cut in two: the head, its last linear layer, and the body, all that comes before."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedfew.util.spelling import unknown


def head_names(parameters: Mapping[str, Tensor], head: str | None = None) -> list[str]:
    """The names, out of those of a model's parameters and buffers in ``state_dict`` order, that belong to the head.

    head: the name of a submodule; None: the last linear layer, which is the last ``weight`` that is a matrix, and its bias.
    """
    modules = [name.rpartition(".")[0] for name in parameters]
    if head is None:
        weights = {name for name in layer_weights(parameters) if parameters[name].ndim == 2}
        linear = [module for module, name in zip(modules, parameters, strict=True) if name in weights]
        if not linear:
            raise ValueError("head: the model has no linear layer to take as its head; name the submodule that is")
        head = linear[-1]
    names = [name for name, module in zip(parameters, modules, strict=True) if module == head or module.startswith(f"{head}.")]
    if not names:
        raise unknown("head in the model called", head, dict.fromkeys(m for m in modules if m))
    if len(names) == len(parameters):
        raise ValueError(f"head: {head or 'the last linear layer'} is the whole model, nothing is left for the body")
    return names


def linear_head(parameters: Mapping[str, Tensor], head: str | None = None, bias: bool = False) -> str:
    """The name of the head, which must be a linear layer; ``parameters`` and ``head`` as for :func:`head_names`.

    bias: it must have one.
    """
    names = head_names(parameters, head)
    found = names[0].rpartition(".")[0]
    kinds = {name.rpartition(".")[2]: parameters[name].ndim for name in names}
    if any(name.rpartition(".")[0] != found for name in names) or kinds not in ({"weight": 2, "bias": 1}, {"weight": 2}):
        raise ValueError(f"head: {head!r} must be a linear layer")
    if bias and "bias" not in kinds:
        raise ValueError(f"head: {found!r} must be a linear layer with a bias")
    return found


def layer_weights(parameters: Mapping[str, Tensor]) -> list[str]:
    """The names of the layers' weights: those with two or more axes, in ``state_dict`` order."""
    return [name for name, t in parameters.items() if name.rpartition(".")[2] == "weight" and t.ndim >= 2]


def last_layers(parameters: Mapping[str, Tensor], count: int) -> list[str]:
    """The names of the last ``count`` layers (see :func:`layer_weights`), and of all that comes after the first of
    these; with more than there are, all names. In ``state_dict`` order."""
    names, layers = list(parameters), layer_weights(parameters)
    if count == 0 or not layers:
        return []
    if count >= len(layers):
        return names
    first = layers[-count].rpartition(".")[0]
    return names[next(at for at, name in enumerate(names) if name.rpartition(".")[0] == first) :]
