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
from fedfew.util.generators import seeded

FEW = (2, 3)  # samples, and in how large a batch: what is checked whatever the clients' sizes are
MOST = 3  # sizes of partial batches that are checked at a time


class Rows:
    """Whether a module on the CPU, in training, makes of the samples of a partial batch the same where others fill it up."""

    def __init__(self, module: nn.Module, batch_size: int) -> None:
        self.module, self.batch_size = module, batch_size
        self._checked: set[tuple[int, int]] = set()

    @torch.no_grad()
    def check(self, samples: Samples) -> None:
        """Refuse a module that does not, for the batches of these clients."""
        partial = {(size % self.batch_size, self.batch_size) for size in samples.largest_first[1] if size % self.batch_size}
        new = sorted(({FEW} | partial) - self._checked)
        if not new or len(samples.y) < 2:
            return
        self._checked |= set(new)
        rows = torch.arange(max(width for _, width in new)) % len(samples.y)
        x = samples.inputs(rows.to(samples.y.device)).cpu()
        if FEW in new:
            self._check_others(x)
        if _draws(self.module, x[:2]):  # in a larger batch other numbers
            return
        for size, width in new[:: -(-len(new) // MOST)]:
            self._check_size(x[:width], size)

    def _check_others(self, x: Tensor) -> None:
        if not _alike(_found(self.module, x[[0, 1]], 1), _found(self.module, x[[0, 0]], 1)):
            raise UnsupportedModuleError(
                f"the stacked engine cannot take {type(self.module).__name__}: in training, what it makes of a sample depends on "
                f"the others in the batch, and the stack fills up batches with samples that must not count{REMEDY}"
            )

    def _check_size(self, x: Tensor, size: int) -> None:
        if not _as_filled_up(self.module, x, size, turned=True):
            raise UnsupportedModuleError(
                f"the stacked engine cannot take {type(self.module).__name__}: in training, what it makes of a sample depends on "
                f"the size of the batch ({size} or {len(x)}) or on its place in it, and the stack fills up batches{REMEDY}"
            )
        if any(isinstance(layer, CountedDropout) for layer in self.module.modules()):
            with keyed(torch.tensor(0)):
                alike = _as_filled_up(self.module, x, size, turned=False)
            if not alike:
                raise UnsupportedModuleError(
                    f"the stacked engine cannot take {type(self.module).__name__}: which units dropout drops depends on the size "
                    "of the batch, as it does for sequences [length, batch, features], and the stack fills up batches; give it "
                    f"[batch, length, features] (batch_first=True), or {REMEDY.removeprefix('; ')}"
                )


def _as_filled_up(module: nn.Module, x: Tensor, size: int, turned: bool) -> bool:
    """Do the first samples get the same by themselves, and the buffers keep the same, as where the rest fill it up? turned:
    by themselves the last comes first, so that all but one are in other places."""
    outputs, *buffers = _found(module, x, size)
    try:
        own, *kept = _found(module, x[:size].flip(0) if turned else x[:size], size)
        return _alike([own.flip(0) if turned else own, *kept], [outputs, *buffers])
    except (RuntimeError, ValueError, IndexError):  # it takes batches of some sizes alone
        return False


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


def _found(module: nn.Module, x: Tensor, count: int) -> list[Tensor]:
    """What the first samples get, and what the module keeps in its buffers, in float64; the others fill the batch up."""
    weights = _weights(module)
    with seeded(0), weighted_rows((torch.arange(len(x)) < count).float()):  # it may draw random numbers itself
        outputs = forward(module, weights, x)
    buffers = [weights[name] for name, _ in module.named_buffers() if name in weights]
    return [t.double() for t in (outputs[:count], *buffers) if isinstance(t, Tensor)]


def _weights(module: nn.Module) -> Tree:
    return {name: t.detach().clone() for name, t in replica_state(module).items()}
