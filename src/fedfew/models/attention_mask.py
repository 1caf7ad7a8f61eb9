"""Padding is hidden from models of Hugging Face: they are given token ids alone, and get their attention mask from these."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WARNING = "warn_if_padding_and_no_attention_mask"


@dataclass(frozen=True)
class AttentionMask:
    """A hook that is called before a module with its arguments, and adds the mask. padding: the token id of padding.

    additive: the mask is a finished one, [N, 1, T, T] of 0 and the lowest number. Where transformers make it from [N, T], they
    ask whether there is any padding at all, which ``torch.func.vmap``, and so the stack, cannot answer.
    """

    padding: int
    additive: bool

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if len(inputs) != 1 or "attention_mask" in named:
            return None
        ids: Tensor = inputs[0]
        seen = ids != self.padding
        seen = seen | (torch.arange(ids.shape[-1], device=ids.device) == 0)  # of an empty text, too: a mean of none is no number
        if not self.additive:
            return inputs, named | {"attention_mask": seen.long()}
        dtype = next(p.dtype for p in module.parameters() if p.is_floating_point())
        mask = torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        return inputs, named | {"attention_mask": mask[:, None, None].expand(-1, 1, ids.shape[-1], -1)}


def add_attention_mask(module: nn.Module) -> None:
    """Register the hook with a module that needs it: one of Hugging Face's that sees all places at once.

    Causal models do not need it: padding is on the right, and no place sees those after it. Some warn where they get none, after
    a look at the token ids, which ``torch.func.vmap`` does not allow either.
    """
    base = _base(module)
    padding = padding_of(base)
    if padding is None or any(isinstance(hook, AttentionMask) for hook in module._forward_pre_hooks.values()):
        return
    if is_causal(base):
        for layer in base.modules():
            if hasattr(layer, WARNING):
                setattr(layer, WARNING, _no_warning)
        return
    finished = hasattr(sys.modules[type(base).__module__], "create_bidirectional_mask")  # takes finished masks as they are
    plain_attention = getattr(base.config, "_attn_implementation", None) in ("eager", "sdpa")
    module.register_forward_pre_hook(AttentionMask(padding, finished and plain_attention), with_kwargs=True)


def check_padding(module: nn.Module, padding: int) -> None:
    """Refuse a model of Hugging Face's that takes another token for padding than the data."""
    base = _base(module)
    if takes_mask(base) and padding_of(base) != padding:
        raise ValueError(
            f"model: config.pad_token_id of {type(base).__name__} is {padding_of(base)}, but the tokenizer pads with {padding}: "
            f"set model.config.pad_token_id = {padding}"
        )


def takes_mask(base: nn.Module) -> bool:
    return (
        hasattr(getattr(base, "config", None), "pad_token_id") and "attention_mask" in inspect.signature(base.forward).parameters
    )


def padding_of(base: nn.Module) -> int | None:
    """The token id that a model of Hugging Face's takes for padding; None: no such model, or not set."""
    found: int | None = base.config.pad_token_id if takes_mask(base) else None  # type: ignore[union-attr, assignment]  # asked above
    return found


def is_causal(base: nn.Module) -> bool:
    return any(getattr(layer, "is_causal", False) is True for layer in base.modules())


def _no_warning(ids: Tensor, mask: Tensor | None) -> None:
    """In place of a method of transformers."""


def _base(module: nn.Module) -> nn.Module:
    """The model within one of peft's."""
    base: nn.Module = module.get_base_model() if hasattr(module, "peft_config") else module  # type: ignore[operator]  # peft's
    return base
