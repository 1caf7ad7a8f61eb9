"""The way in: :func:`train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedfew import engines, methods, models, random_streams
from fedfew._version import __version__
from fedfew.engines import Engine, LocalTraining
from fedfew.engines.augment import Augment
from fedfew.engines.augment import check as check_augment
from fedfew.engines.memory import allowance
from fedfew.engines.precision import Precision
from fedfew.engines.precision import check as check_precision
from fedfew.federation import Federation, Samples
from fedfew.methods import Method
from fedfew.methods.base import Fresh
from fedfew.models.state import buffer_names, frozen_state, holding, replica_state
from fedfew.stack import Tree, named_leaves, to
from fedfew.training import batch_norm_policy, checkpoint, distributed
from fedfew.training.batch_norm_policy import BatchNorm
from fedfew.training.checkpoint import State
from fedfew.training.history import History
from fedfew.training.loop import Progress, RoundLoop
from fedfew.training.run import ModelFactory, Run


def train(
    federation: Federation,
    model: str | ModelFactory = "mlp",
    method: str | Method = "fedfew",
    *,
    rounds: int = 100,
    local_epochs: int = 1,
    batch_size: int = 20,
    lr: float = 0.05,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    participation: float = 1.0,
    batch_norm: BatchNorm = "average",
    augment: Augment = "none",
    seed: int = 0,
    engine: str = "auto",
    precision: Precision = "tf32",
    device: str = "auto",
    chunk: int | None = None,
    score_every: int = 1,
    folder: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    on_round: Callable[[Progress], None] | None = None,
) -> Run:
    """Train a federation and return the run.

    model: a name ("linear", "mlp", "cnn", "textcnn", "resnet18", …) or a zero-argument callable returning an ``nn.Module`` that
        gives logits.
    method: a name, or a method with its settings, e.g. ``FedFew(models=4, mu=0.003)``.
    participation: share of the clients, drawn anew each round, that take part in it.
    batch_norm: whose statistics BatchNorm layers use. "average": they travel with the parameters; "local": every client keeps
        these layers at home (FedBN); "batch": none are kept, evaluation uses those of the client's own batch.
    augment: what happens to images in training. "none", "flip" (left to right, every other one), or "crop-flip" (also shifted by
        up to 4 pixels).
    engine: "stacked" (all replicas at once), "threaded" (as many side by side as there are cores), "sequential" (one by one), or
        "auto": the fastest one in a short trial.
    precision: of the factors of products on a GPU: "tf32" (10 bits of the mantissa), "fp32" (all of it, half as fast), or "bf16".
    chunk: how many clients are processed at once; chosen to fit in memory unless given. The result is the same.
    score_every: score all clients every so many rounds (and after the last).
    folder: where checkpoints go, every ``checkpoint_every`` rounds (less often where large ones would take over a tenth of the
        time); with ``resume`` a run that was stopped there goes on, and ends as if it had not been (to the last bit on a CPU).
    on_round: called after every round with a :class:`Progress`.

    Inside a process group of ``torch.distributed`` the processes split each round's clients among them, every one on a GPU of its
    own where there are GPUs. All return the same run; only the first writes checkpoints and calls ``on_round``.
    """
    _check(rounds, "rounds", rounds >= 1, "≥ 1")
    _check(local_epochs, "local_epochs", local_epochs >= 1, "≥ 1")
    _check(batch_size, "batch_size", batch_size >= 1, "≥ 1")
    _check(lr, "lr", 0 < lr < float("inf"), "a finite number > 0")
    _check(momentum, "momentum", 0 <= momentum < 1, "in [0, 1)")
    _check(weight_decay, "weight_decay", 0 <= weight_decay < float("inf"), "a finite number ≥ 0")
    _check(participation, "participation", 0 < participation <= 1, "in (0, 1]")
    _check(score_every, "score_every", score_every >= 1, "≥ 1")
    _check(checkpoint_every, "checkpoint_every", checkpoint_every >= 1, "≥ 1")
    _check(chunk, "chunk", chunk is None or chunk >= 1, "≥ 1")
    chosen = methods.make(method) if isinstance(method, str) else method
    chosen.check_against(len(federation))
    shape, classes, vocabulary = federation.shape, federation.classes, federation.vocabulary
    factory = (lambda: models.build(model, shape, classes, vocabulary)) if isinstance(model, str) else model
    batch_norm_policy.check(batch_norm, factory(), chosen, federation, batch_size)
    check_augment(augment, federation.train)
    check_precision(precision)
    group = distributed.group()
    where = distributed.device_of(group, device_named(device))
    outcome_settings: dict[str, Any] = {
        "federation": {
            "name": federation.name,
            "clients": len(federation),
            "classes": classes,
            "shape": list(shape),
            "vocabulary": vocabulary,
            "test_samples": federation.test.count.tolist(),
            "pixels": federation.train.pixels,
            "dtype": str(federation.train.x.dtype).removeprefix("torch."),
            "fingerprint": federation.fingerprint(),
        },
        "model": model if isinstance(model, str) else _name(model),
        "method": chosen.settings(),
        "local_epochs": local_epochs,
        "batch_size": batch_size,
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "participation": participation,
        "batch_norm": batch_norm,
        "augment": augment,
        "seed": seed,
        "score_every": score_every,
    }
    group.check_same(outcome_settings | {"rounds": rounds})
    place = None if folder is None else Path(folder)
    resumed, refused = _resumed(place, resume, outcome_settings)
    if resumed is not None:
        if resumed.round > rounds:
            raise ValueError(f"rounds is {rounds}, but the run in {folder} has already done {resumed.round}")
        engine = resumed.settings["engine"] if engine == "auto" else engine
        chunk = resumed.settings["chunk"] if chunk is None else chunk
    factory, chosen = batch_norm_policy.with_policy(batch_norm, factory, chosen)
    frozen = frozen_parameters(factory, seed) if resumed is None else resumed.frozen
    factory = holding(factory, dict(named_leaves(frozen)))
    fresh = fresh_models(factory, seed, where)
    here = federation.to(where, stream=too_large(federation, where))
    training = LocalTraining(lr, batch_size, local_epochs, momentum, weight_decay, augment, precision)
    worker = engines.make(engine, factory().to(where), training, seed, here.train, chosen.replicas)
    if (agreed := group.firsts(worker.name)) != worker.name:  # their trials may differ, but they must train alike
        worker = engines.make(agreed, factory().to(where), training, seed, here.train, chosen.replicas)
    if chunk is None:
        chunk = group.firsts(_clients_that_fit(worker, here.train, chosen.replicas))
    if resumed is None:
        server, own = chosen.init(fresh, len(federation))
        state = State(0, server, own, History(), {}, frozen=frozen)
    else:
        state = resumed
        state.server, state.own = to(state.server, where), to(state.own, where)
    state.settings = outcome_settings | {
        "rounds": rounds,
        "engine": worker.name,
        "precision": precision,
        "chunk": chunk,
        "fedfew": __version__,
        "torch": torch.__version__,
    }
    loop = RoundLoop(here, chosen, worker, chunk, factory, state, place, checkpoint_every, on_round, group)
    loop.events += [f"refused: {reason}" for reason in refused]
    if worker.why:
        loop.events.append(f"engine: {worker.name}, {worker.why}")
    if precision == "bf16" and where.type == "cpu":
        loop.events.append("precision is 'bf16', which has no effect here: a CPU computes in float32")
    try:
        return loop.run()
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"the GPU's memory is full with {chunk} clients at once, {chosen.replicas} models each: give a smaller chunk "
            f"(--chunk {max(1, chunk // 2)}), or run less beside it. PyTorch says: {str(error).partition('. ')[0]}"
        ) from error


def fresh_models(factory: ModelFactory, seed: int, device: torch.device) -> Fresh:
    """fresh(k): the k-th initialisation of what a replica of the module holds, a function of the seed alone."""

    def fresh(k: int) -> Tree:
        return {name: t.clone().to(device) for name, t in replica_state(_initialised(factory, seed, k)).items()}

    return Fresh(fresh, buffer_names(factory()))


def frozen_parameters(factory: ModelFactory, seed: int) -> Tree:
    """What the module has frozen, by its first initialisation; the same for all models of a run."""
    module = _initialised(factory, seed, 0)
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"model: {type(module).__name__} has no parameter to train (requires_grad is False for all it has)")
    return {name: t.clone() for name, t in frozen_state(module).items()}


def _initialised(factory: ModelFactory, seed: int, k: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random_streams.count(random_streams.INIT, seed, k)))
        return factory()


def _name(factory: ModelFactory) -> str:
    """module:name of a user's own factory; the colon tells it from the name of one of ours."""
    named = factory if hasattr(factory, "__qualname__") else type(factory)
    return f"{named.__module__}:{named.__qualname__}"


def _resumed(folder: Path | None, resume: bool, settings: dict[str, Any]) -> tuple[State | None, list[str]]:
    if folder is None:
        if resume:
            raise ValueError("resume needs folder: where the run to go on with lies")
        return None, []
    if not checkpoint.checkpoints(folder):
        return None, []
    if not resume:
        raise ValueError(f"{folder} already holds a run: resume it (resume=True), or choose another folder")
    return checkpoint.read_newest(folder, settings)


def _clients_that_fit(engine: Engine, samples: Samples, replicas: int) -> int:
    """How many clients to process at once: as many as a fixed share of the device's memory takes."""
    each = replicas * engine.bytes_per_replica(samples)
    return max(1, min(len(samples.count), allowance(samples.y.device) // each))


def too_large(federation: Federation, device: torch.device) -> bool:
    """Do the features leave too little of a GPU's memory for training?"""
    if device.type != "cuda":
        return False
    features = sum(s.x.numel() * s.x.element_size() for s in (federation.train, federation.test))
    return bool(features > allowance(device))


def device_named(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but this machine has no CUDA GPU that torch can use")
    return device


def _check(value: object, name: str, ok: bool, wanted: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {wanted}, not {value!r}")
