"""A model with a memory: in evaluation its probabilities are mixed with those of the nearest samples that it remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.models.split import linear_head

KEYS, LABELS, PRIOR = "memory_keys", "memory_labels", "memory_prior"  # the module's buffers
EMPTY = -1  # the label of a place in which nothing is remembered
FAR = 1e30  # the distance of such a place


@dataclass(frozen=True)
class Recall:
    """Hooks of a module: what enters its head is compared with the keys, and the output becomes log-probabilities.

    Where clients add a log prior to whatever the module says, it is taken off here: the model's probabilities have it, and those
    of the neighbours, who know how often labels occur, do not get it a second time.
    """

    head: str
    neighbours: int
    share: float
    scale: float

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            return
        seen: list[Tensor] = []
        hook = module.get_submodule(self.head).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        vars(module)["_recall"] = hook, seen

    def end(self, module: nn.Module, inputs: tuple[Any, ...], logits: Tensor) -> Tensor:
        if module.training:
            return logits
        hook, seen = vars(module).pop("_recall")
        hook.remove()
        near = nearest(seen[0], module.get_buffer(KEYS), module.get_buffer(LABELS), logits.shape[-1], self.neighbours, self.scale)
        rest = 1 - self.share * near.sum(-1, keepdim=True)  # an empty memory has no weight
        prior = module.get_buffer(PRIOR)[: logits.shape[-1]].to(logits.dtype)  # a head may have more outputs than the model
        mixed = self.share * near + rest * (logits + prior).softmax(-1)
        return mixed.clamp_min(torch.finfo(logits.dtype).tiny).log() - prior


def nearest(z: Tensor, keys: Tensor, labels: Tensor, classes: int, neighbours: int, scale: float) -> Tensor:
    """Probabilities of the classes, ``[B, classes]``: of the k keys nearest to z, each weighs exp(−‖z − key‖²/(d·scale))."""
    distance = (z.square().sum(-1, keepdim=True) + keys.square().sum(-1) - 2 * z @ keys.mT).clamp_min(0)
    distance = torch.where(labels == EMPTY, FAR, distance)
    found = distance.topk(min(neighbours, keys.shape[0]), dim=-1, largest=False)
    weight = torch.softmax(-found.values / (z.shape[-1] * scale), -1) * (found.values < FAR)
    of_class = F.one_hot(labels.clamp_min(0), classes).to(z.dtype)[found.indices]  # [B, k, classes]
    return (weight[..., None] * of_class).sum(-2)


def with_memory(
    module: nn.Module, capacity: int, neighbours: int, share: float, scale: float, head: str | None = None
) -> nn.Module:
    """The module itself, with an empty memory of so many samples. head: the linear layer whose inputs are remembered, by name;
    None: the last one."""
    parameters = dict(module.named_parameters())
    head = linear_head(parameters, head)
    weight = parameters[f"{head}.weight"]
    module.register_buffer(KEYS, weight.new_zeros(capacity, weight.shape[1]).detach())
    module.register_buffer(LABELS, torch.full((capacity,), EMPTY, device=weight.device))
    module.register_buffer(PRIOR, weight.new_zeros(weight.shape[0]).detach())
    recall = Recall(head, neighbours, share, scale)
    module.register_forward_pre_hook(recall.begin)
    module.register_forward_hook(recall.end)
    return module
