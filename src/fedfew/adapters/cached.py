"""Training a head alone: what enters it is computed once, and the rounds are those of a linear model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedfew.adapters.frozen import head_of
from fedfew.federation import Federation, Samples
from fedfew.models import ModelFactory
from fedfew.models.batch_norm import uses_batch_statistics

BATCH = 512  # samples that go through the body at once


class HeadAlone(nn.Module):
    """The head of a module under the name that it has there, so that its parameters have the same names, too."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._name = head_of(module)
        *path, last = self._name.split(".")
        parent: nn.Module = self
        for name in path:
            parent.add_module(name, nn.Module())
            parent = parent.get_submodule(name)
        parent.add_module(last, module.get_submodule(self._name))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.get_submodule(self._name)(x)
        return found


def on_features(federation: Federation, factory: ModelFactory, device: torch.device) -> tuple[Federation, ModelFactory]:
    """The federation of what enters the head, with the body in evaluation mode (no dropout), and a factory of heads."""
    module = factory().to(device).eval()
    if uses_batch_statistics(module):
        raise ValueError(
            f"freeze is 'body', but what {type(module).__name__} makes of a sample depends on the others in its batch (BatchNorm "
            "with track_running_stats=False), so it cannot be computed once: use adapters=LoRA(targets=[]), which trains the "
            "last linear layer within the whole model"
        )
    features = federation.with_splits(lambda samples: replace(samples, x=_features(module, samples, device)))
    return features, lambda: HeadAlone(factory())


@torch.no_grad()
def _features(module: nn.Module, samples: Samples, device: torch.device) -> Tensor:
    name = head_of(module)
    head, seen = module.get_submodule(name), list[Tensor]()
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        for at, rows in enumerate(torch.arange(len(samples.x), device=device).split(BATCH)):
            outputs = module(samples.inputs(rows))
            if at == 0 and (len(seen) != 1 or not torch.equal(head(seen[0]), outputs)):
                raise ValueError(
                    f"freeze is 'body', but the outputs of {type(module).__name__} are not those of its last linear layer, "
                    f"{name}, alone: use adapters=LoRA(targets=[]), which trains that layer within the whole model"
                )
            seen[at:] = [seen[at].to(samples.x.device)]
    finally:
        hook.remove()
    return torch.cat(seen)
