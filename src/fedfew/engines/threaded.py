"""Replicas side by side, as many as there are cores: the CPU's choice for convolutions.

Two cores that share one small convolution wait for each other after every operation; two that train a replica each do not. So
every worker does what the sequential engine does, on a core of its own, with images laid out channels last, in which pooling
is many times faster. A replica's arithmetic happens on one core whatever their number, so results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedfew.config import LocalTraining
from fedfew.engines.freed_memory import keep_freed, kept_in_a_run
from fedfew.engines.recorded_steps import RecordedSteps
from fedfew.engines.sequential import Sequential, Step, Work, together
from fedfew.federation import Samples
from fedfew.local import Objective, Projection
from fedfew.stack import Tree, leaves, tree_map
from fedfew.util.cores import torch_threads


class _GradientLaidOut(torch.autograd.Function):
    """The identity, of whose gradient images are laid out in a memory format."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, layout: torch.memory_format) -> Tensor:
        found: Tensor = torch.ops.aten.alias(x)  # x.view_as(x) of a single image is no longer laid out channels last
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.memory_format], output: Tensor) -> None:
        ctx.layout = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].contiguous(memory_format=ctx.layout), None


class ChannelsLastPool(nn.MaxPool2d):
    """For images laid out channels last. Where a layer that flattens comes next, their gradient is not, and PyTorch's backward
    pass then takes six times as long as with one that is."""

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = super().forward(x)
        if x.ndim < 4 or not x.is_contiguous(memory_format=torch.channels_last):
            return pooled
        laid_out: Tensor = _GradientLaidOut.apply(pooled, torch.channels_last)
        return laid_out


def _of_plain_input(norm: Callable[..., Any]) -> Callable[..., Any]:
    """Of images channels last that need no gradient themselves, as in a first layer, PyTorch's backward pass of group
    normalisation ends the process."""

    def normalised(input: Tensor, *others: Any, **named: Any) -> Any:
        return norm(input if input.requires_grad else input.contiguous(), *others, **named)

    return normalised


def _of_plain_gradient(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of a single image PyTorch takes a gradient of instance normalisation that is laid out channels last for a plain one."""

    def normalised(input: Tensor, *others: Any, **named: Any) -> Tensor:
        found: Tensor = _GradientLaidOut.apply(norm(input, *others, **named), torch.contiguous_format)
        return found

    return normalised


NORMS: dict[Any, Callable[..., Any]] = {
    F.group_norm: _of_plain_input(F.group_norm),
    torch.group_norm: _of_plain_input(torch.group_norm),
    torch.native_group_norm: _of_plain_input(torch.native_group_norm),
    F.instance_norm: _of_plain_gradient(F.instance_norm),
    torch.instance_norm: _of_plain_gradient(torch.instance_norm),
}


class _PlainNorms(TorchFunctionMode):
    """Within, images laid out channels last are normalised one by one as in a plain layout, by layers and by functions."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return NORMS.get(func, func)(*args, **(kwargs or {}))


class _ChannelsLast(Sequential):
    def _laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


class _Worker(_ChannelsLast):
    """Trains one replica at a time, with a copy of the module that no other worker touches."""

    def __init__(self, module: nn.Module, training: LocalTraining, seed: int) -> None:
        super().__init__(module, training, seed)
        self._recorded = RecordedSteps(self)
        for layer in self.module.modules():
            if type(layer) is nn.MaxPool2d and not layer.return_indices:
                layer.__class__ = ChannelsLastPool

    def minimised(self, *of_step: Any) -> tuple[Tensor, Tensor]:
        with _PlainNorms():
            return super().minimised(*of_step)

    def _logits(self, *of_batch: Any) -> Tensor:
        with _PlainNorms():
            return super()._logits(*of_batch)

    def _steps(self, params: Tree, objective: Objective, context: Tree, project: Projection | None) -> Step:
        return self._recorded.of(params, objective, context, project)


class Threaded(_ChannelsLast):
    name: ClassVar[str] = "threaded"

    def __init__(self, module: nn.Module, training: LocalTraining, seed: int) -> None:
        super().__init__(module, training, seed)
        keep_freed()  # without, a step of a small CNN takes a tenth more processor time
        cores = torch.get_num_threads()
        self._workers = [_Worker(module, training, seed) for _ in range(cores)]
        self._pool = ThreadPoolExecutor(cores, "fedfew", initializer=torch.set_num_threads, initargs=(1,))

    def memory_kept(self) -> AbstractContextManager[None]:
        return kept_in_a_run()

    def _for_each_replica(self, work: Work, params: Tree, samples: Samples) -> tuple[Tree, Tensor]:
        clients, models = leaves(params)[0].shape[:2]
        differentiated = torch.is_grad_enabled()  # every thread has a switch of its own
        free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            worker.module.train(self.module.training)
            free.put(worker)

        def task(i: int, k: int) -> tuple[Tree, Tensor]:
            worker = free.get()
            try:
                with torch.set_grad_enabled(differentiated):
                    tree, value = work(worker, i, k)
                    return tree_map(Tensor.contiguous, tree), value
            finally:
                free.put(worker)

        largest_first = samples.count.argsort(descending=True, stable=True).tolist()  # so that none is left for the end
        with torch_threads(1):  # no operation is itself spread over cores
            futures = {(i, k): self._pool.submit(task, i, k) for i in largest_first for k in range(models)}
            try:
                wait(futures.values(), return_when=FIRST_EXCEPTION)
            finally:  # after an error or a Ctrl-C nothing more is begun, and what has begun is waited for
                for future in futures.values():
                    future.cancel()
                wait(futures.values())
            for future in futures.values():
                if not future.cancelled():
                    future.result()  # raises what went wrong, if something did
            return together([[futures[i, k].result() for k in range(models)] for i in range(clients)])
