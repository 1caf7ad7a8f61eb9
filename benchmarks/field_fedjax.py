"""The field's benchmark with FedJAX (``fedjax`` on PyPI, on JAX); called by ``field.py``.

Its own ``federated_averaging`` with the default backend (``jit``: one client after the other, each step compiled), images as
float32 arrays beforehand, the model in JAX's own layout (channels last). Nothing is evaluated on clients. The python given for
it needs fedjax, jax and, to read the task, torch.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from field_task import BATCH, LR, Clock, Task, inputs

SIDE, CHANNELS = 14, 64  # of what enters the first linear layer


def in_jax(state: dict[str, Tensor]) -> dict[str, Any]:
    """PyTorch's parameters in JAX's layouts: filters [height, width, in, out], matrices [in, out], rows in the order of channels
    last."""
    found = {}
    for name, tensor in state.items():
        array = tensor.numpy()
        if array.ndim == 4:
            array = array.transpose(2, 3, 1, 0)
        elif array.ndim == 2 and array.shape[1] == CHANNELS * SIDE**2:
            array = array.reshape(-1, CHANNELS, SIDE, SIDE).transpose(2, 3, 1, 0).reshape(-1, array.shape[0])
        elif array.ndim == 2:
            array = array.T
        found[name] = np.ascontiguousarray(array)
    return found


def in_torch(params: dict[str, Any], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The way back."""
    found = {}
    for name, value in params.items():
        array = np.asarray(value)
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif array.ndim == 2 and array.shape[0] == CHANNELS * SIDE**2:
            array = array.reshape(SIDE, SIDE, CHANNELS, -1).transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
        elif array.ndim == 2:
            array = array.T
        found[name] = torch.from_numpy(array.copy()).reshape(like[name].shape)
    return found


def main(folder: Path) -> None:
    task = Task(folder)
    if task.device.type == "cpu":  # read when jax is imported
        threads = task.settings["threads"]
        os.environ |= {"JAX_PLATFORMS": "cpu", "NPROC": str(threads)}
        if threads == 1:
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import jax

    if not hasattr(jax, "tree_map"):  # fedjax 0.0.17, the newest, still calls it; jax has since moved it
        jax.tree_map = jax.tree_util.tree_map
    import fedjax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg

    first, second = (0.25, 0.5) if task.settings["dropout"] else (0.0, 0.0)
    layers = [name.removesuffix(".weight") for name in task.model().state_dict() if name.endswith(".weight")]

    def dropped(x: Any, rate: float, rng: Any) -> Any:
        return jnp.where(jax.random.bernoulli(rng, 1 - rate, x.shape), x / (1 - rate), 0) if rate else x

    def logits(params: dict[str, Any], x: Any, rng: Any) -> Any:
        one, two = jax.random.split(rng)
        for layer in layers[:2]:
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, params[f"{layer}.weight"], (1, 1), "VALID", dimension_numbers=layout)
            x = jax.nn.relu(x + params[f"{layer}.bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = dropped(x, first, one).reshape(len(x), -1)
        x = jax.nn.relu(x @ params[f"{layers[2]}.weight"] + params[f"{layers[2]}.bias"])
        return dropped(x, second, two) @ params[f"{layers[3]}.weight"] + params[f"{layers[3]}.bias"]

    def loss(params: dict[str, Any], batch: dict[str, Any], rng: Any) -> Any:
        chosen = jax.nn.log_softmax(logits(params, batch["x"], rng))
        return -jnp.take_along_axis(chosen, batch["y"][:, None], 1).mean()

    x = inputs(task.array("x")).movedim(2, -1).contiguous().numpy()
    y = task.array("y")
    orders = {(r, u): task.order(r, u).numpy() for r in range(1, task.rounds + 1) for u in task.cohort(r)}

    def clients(number: int) -> list[tuple[Any, Any, Any]]:
        rngs = jax.random.split(jax.random.PRNGKey(number), len(task.cohort(number)))
        return [
            (user, fedjax.ClientDataset({"x": x[user][order], "y": y[user][order]}), rng)
            for (user, order), rng in zip(((u, orders[number, u]) for u in task.cohort(number)), rngs, strict=True)
        ]

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, skip_shuffle=True),
    )
    initial = task.model().state_dict()
    state = algorithm.init(jax.tree_util.tree_map(jnp.asarray, in_jax(initial)))
    clock = Clock()
    for number in range(1, task.rounds + 1):
        state, _ = algorithm.apply(state, clients(number))
        jax.block_until_ready(state.params)
        clock.tick()
    how = f"jit backend, jax {version('jax')}"
    task.finish("fedjax", clock, in_torch(state.params, initial), version=version("fedjax"), how=how)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
