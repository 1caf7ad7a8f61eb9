"""Modules in which samples of a batch meet elsewhere than in BatchNorm: the samples that fill up a batch would count in them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedfew.engines.base import REMEDY, UnsupportedModuleError
from fedfew.engines.dropout import CountedDropout, keyed
from fedfew.engines.evaluation import forward
from fedfew.engines.stacked.batch_norm import weighted_rows
from fedfew.federation import Samples
from fedfew.models.state import replica_state
from fedfew.stack import Tree


@torch.no_grad()
def check_rows(module: nn.Module, samples: Samples) -> None:
    """Refuse a module on the CPU, in training, that gives the first sample something else, or keeps something else of it, where
    another one fills up the batch beside it."""
    if len(samples.y) < 2:
        return
    x = samples.inputs(torch.arange(2, device=samples.y.device)).cpu()
    if not _alike(_of_the_first(module, x), _of_the_first(module, x[[0, 0]])):
        raise UnsupportedModuleError(
            f"the stacked engine cannot take {type(module).__name__}: in training, what it makes of a sample depends on the "
            f"others in the batch, and the stack fills up batches with samples that must not count{REMEDY}"
        )
    if any(isinstance(layer, CountedDropout) for layer in module.modules()) and not _draws(module, x):
        with keyed(torch.tensor(0)):
            of_two, of_three = (_of_the_first(module, x[[0] * number]) for number in (2, 3))
        if not _alike(of_two, of_three):
            raise UnsupportedModuleError(
                f"the stacked engine cannot take {type(module).__name__}: which units dropout drops depends on the size of the "
                "batch, as it does for sequences [length, batch, features], and the stack fills up batches; give it "
                f"[batch, length, features] (batch_first=True), or {REMEDY.removeprefix('; ')}"
            )


def _alike(some: list[Tensor], others: list[Tensor]) -> bool:
    for one, other in zip(some, others, strict=True):
        largest = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * largest, equal_nan=True):
            return False
    return True


def _draws(module: nn.Module, x: Tensor) -> bool:
    """Does the module draw random numbers itself?"""
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        forward(module, _weights(module), x)
        return not torch.equal(before, torch.get_rng_state())


def _of_the_first(module: nn.Module, x: Tensor) -> list[Tensor]:
    """What the first sample gets, and what the module keeps in its buffers, in float64."""
    weights = _weights(module)
    with torch.random.fork_rng(devices=[]), weighted_rows(torch.tensor([1.0] + [0.0] * (len(x) - 1))):
        torch.manual_seed(0)  # for a module that draws random numbers itself
        outputs = forward(module, weights, x)
    buffers = [weights[name] for name, _ in module.named_buffers() if name in weights]
    return [t.double() for t in (outputs[0], *buffers) if isinstance(t, Tensor)]


def _weights(module: nn.Module) -> Tree:
    return {name: t.detach().clone() for name, t in replica_state(module).items()}
