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
        linear = [m for m, (name, t) in zip(modules, parameters.items(), strict=True) if _is_linear_weight(name, t)]
        if not linear:
            raise ValueError("head: the model has no linear layer to take as its head; name the submodule that is")
        head = linear[-1]
    names = [name for name, module in zip(parameters, modules, strict=True) if module == head or module.startswith(f"{head}.")]
    if not names:
        raise unknown("head in the model called", head, dict.fromkeys(m for m in modules if m))
    if len(names) == len(parameters):
        raise ValueError(f"head: {head or 'the last linear layer'} is the whole model, nothing is left for the body")
    return names


def _is_linear_weight(name: str, tensor: Tensor) -> bool:
    return name.rpartition(".")[2] == "weight" and tensor.ndim == 2
