"""BatchNorm, and InstanceNorm with running statistics, that leave out the samples which only fill a stacked batch up.

In the stack a client's last, partial batch has the width of the others. What fills it weighs nothing in the loss, but plain
BatchNorm would take it into its mean and variance. Here they are those of the samples that weigh something; running statistics
move as PyTorch moves them. The layers keep the names of parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedfew.engines.base import REMEDY, UnsupportedModuleError
from fedfew.engines.stacked.kernels import batch_norm as kernel
from fedfew.engines.stacked.normalising import along_channels, normalised, statistics
from fedfew.models.layers import become

_weight: Tensor | None = None


@contextmanager
def weighted_rows(weight: Tensor) -> Iterator[None]:
    """Within: what each of the batch's samples ``[B]`` weighs, 0 for those that only fill it up (vmapped in the stack)."""
    global _weight
    before, _weight = _weight, weight
    try:
        yield
    finally:
        _weight = before


class MaskedBatchNorm(_BatchNorm):
    """BatchNorm over the samples of a batch that weigh something."""

    def forward(self, x: Tensor) -> Tensor:
        running = None if self.running_mean is None or self.running_var is None else (self.running_mean, self.running_var)
        if running is not None and not self.training:
            return normalised(x, *running, self.weight, self.bias, self.eps)  # F.batch_norm fails here within vmap on a GPU
        if kernel.takes(x, self.weight, self.running_mean):
            return self._by_kernel(x, running)
        mean, variance, values = statistics(x, _that_count(x, "BatchNorm"))
        if running is not None:
            self._keep(running, mean.detach(), variance.detach(), values)
        return normalised(x, mean, variance, self.weight, self.bias, self.eps)

    def _by_kernel(self, x: Tensor, running: tuple[Tensor, Tensor] | None) -> Tensor:
        samples, share = _weights_of(x, "BatchNorm"), 0.0 if running is None else self._share(x.dtype)
        out, moved = kernel.batch_norm(x, self.weight, self.bias, samples, running, share, self.eps)
        for statistic, after in zip(running or (), moved, strict=False):
            statistic.copy_(after.detach())
        return out

    def _keep(self, running: tuple[Tensor, Tensor], mean: Tensor, variance: Tensor, values: Tensor) -> None:
        """Move the running statistics, in place: the running variance by the unbiased one, as PyTorch does."""
        share = self._share(mean.dtype)
        unbiased = variance * (values / (values - 1).clamp_min(1))
        for statistic, found in zip(running, (mean, unbiased), strict=True):
            statistic.copy_((1 - share) * statistic + share * found)

    def _share(self, dtype: torch.dtype) -> float | Tensor:
        """Of the batch in the running statistics, after counting it."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1.0 / self.num_batches_tracked.to(dtype) if self.momentum is None else self.momentum


class MaskedInstanceNorm(_InstanceNorm):
    """InstanceNorm whose running statistics are those of the samples that weigh something."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        if not self.training:
            mean, variance = (along_channels(t, x) for t in (self.running_mean, self.running_var))
        else:
            over = list(range(2, x.ndim))
            mean, variance = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
            self._keep(mean.detach().flatten(1), variance.detach().flatten(1), x[0, 0].numel())
        normalised = (x - mean) * (variance + self.eps).rsqrt()
        if self.weight is not None:
            normalised = normalised * along_channels(self.weight, x)
        return normalised if self.bias is None else normalised + along_channels(self.bias, x)

    def _keep(self, mean: Tensor, variance: Tensor, values: int) -> None:
        """Move the running statistics, in place, by the mean over samples of what each of them has."""
        assert self.running_mean is not None
        assert self.running_var is not None
        keep = _that_count(mean, "InstanceNorm")[:, None]
        share = self.momentum or 0.0  # as PyTorch: without a momentum they stay
        for running, found in ((self.running_mean, mean), (self.running_var, variance * (values / max(1, values - 1)))):
            running.copy_((1 - share) * running + share * ((found * keep).sum(0) / keep.sum()))


MASKED: dict[type[nn.Module], type[nn.Module]] = {
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), MaskedBatchNorm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), MaskedInstanceNorm),
}


def _that_count(x: Tensor, layer: str) -> Tensor:
    """For each row of x: 1, or 0 where it only fills the batch up."""
    weight = _weights_of(x, layer)
    return (torch.ones(len(x), device=x.device) if weight is None else weight > 0).to(x.dtype)


def _weights_of(x: Tensor, layer: str) -> Tensor | None:
    """What each row of x weighs; None: all count."""
    if _weight is not None and len(_weight) != len(x):
        raise UnsupportedModuleError(
            f"the stacked engine cannot take a layer of {layer} that sees {len(x)} rows of a batch of {len(_weight)} samples: "
            f"it cannot tell which of them only fill the batch up{REMEDY}"
        )
    return _weight


def make_masked(module: nn.Module) -> nn.Module:
    """The module itself, every plain layer in it whose statistics are of several samples made a masked one."""
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm) and not (isinstance(layer, _InstanceNorm) and layer.running_mean is not None):
            continue
        if type(layer) not in MASKED:
            raise UnsupportedModuleError(
                f"the stacked engine cannot take {type(layer).__name__} ({name}), only nn.BatchNorm1d, 2d and 3d, and "
                f"nn.InstanceNorm1d, 2d and 3d{REMEDY}"
            )
        become(layer, MASKED[type(layer)])
    return module
