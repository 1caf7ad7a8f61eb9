"""The Python that builds a module without fedfew, for the model card."""

from __future__ import annotations

from torch import nn


def in_torch(module: nn.Module) -> str | None:
    """Of a plain sequence of PyTorch's own layers; None of anything else."""
    if type(module) is not nn.Sequential or not all(map(_is_a_layer, module)):
        return None
    layers = "".join(f"    nn.{layer},\n" for layer in module)
    return f"nn.Sequential(\n{layers})"


def _is_a_layer(module: nn.Module) -> bool:
    """One that PyTorch prints as it is made: ``Linear(in_features=11, out_features=64, bias=True)``."""
    return type(module).__module__.startswith("torch.nn.modules.") and not any(module.children())
