"""Whether a model draws random numbers itself. All others of a run are a function of its seed; these are not."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedfew.engines.dropout import keyed, make_counted, one_pass
from fedfew.federation import Samples


def note(module: nn.Module, samples: Samples) -> list[str]:
    """A line where the module, on the CPU and in training, draws from the global generators of PyTorch, numpy or Python."""
    rows = torch.arange(min(2, len(samples.y)), device=samples.y.device)
    return note_on(module, samples.inputs(rows).cpu())


def note_on(module: nn.Module, x: Tensor) -> list[str]:
    """The same where it is given these inputs."""
    layer = _drawing_layer(make_counted(module).train(), x)
    if layer is None:
        return []
    return [
        f"model: {layer} draws random numbers of its own in training, which do not follow from the seed: the run cannot be "
        "repeated, and outcomes differ between engines and after a resume. Dropout as a layer (nn.Dropout) follows from the seed"
    ]


def _drawing_layer(module: nn.Module, x: Tensor) -> str | None:
    """The name and kind of the first layer in whose forward something is drawn, the innermost one; the module changes."""
    begun: list[Any] = []
    found: list[str] = []

    def before(layer: nn.Module, _: Any) -> None:
        begun.append(_states())

    def after(layer: nn.Module, _: Any, __: Any) -> None:
        if begun.pop() != _states():
            name, kind = names[layer], type(layer).__name__
            found.append(f"{name} ({kind})" if name else kind)

    named = module.named_modules()
    names = {layer: name for name, layer in named if not isinstance(layer, torch.jit.ScriptModule)}  # which take no hooks
    for layer in names:
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after)
    refused = suppress(RuntimeError, ValueError)  # of two samples, which are too few for some
    with torch.no_grad(), generators_restored(), keyed(torch.tensor(0)), one_pass(), refused:
        module(x)
    return found[0] if found else None


def _states() -> tuple[Any, ...]:
    return torch.get_rng_state().numpy().tobytes(), pickle.dumps(np.random.get_state()), random.getstate()


@contextmanager
def generators_restored() -> Iterator[None]:
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
