"""The way in: :func:`train`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedfew import engines, methods, models, random_streams, tasks
from fedfew._version import __version__
from fedfew.adapters import TrainedPart
from fedfew.adapters.cached import on_features
from fedfew.config import Recipe, TrainConfig, recipe_settings
from fedfew.engines import Engine, packed
from fedfew.engines.augment import check as check_augment
from fedfew.engines.memory import allowance
from fedfew.federation import Federation, Samples
from fedfew.methods import FedBN, FedFew, Method
from fedfew.methods.base import Fresh
from fedfew.models import ModelFactory
from fedfew.models.own import OwnModel
from fedfew.models.state import buffer_names, frozen_state, holding, replica_state
from fedfew.stack import Tree, leaves, named_leaves, take
from fedfew.training import (
    batch_norm_policy,
    checkpoint,
    distributed,
    model_check,
    own_metrics,
    privacy,
    products,
    progress_bar,
    restart,
    task_settings,
    validation,
)
from fedfew.training.attack import with_attack
from fedfew.training.checkpoint import State
from fedfew.training.class_weights import with_class_weights
from fedfew.training.data_record import DataRecord
from fedfew.training.history import History
from fedfew.training.label_prior import with_label_prior
from fedfew.training.loop import OnRound, RoundLoop
from fedfew.training.run import Run
from fedfew.training.server_optimizer import ServerOptimizer
from fedfew.training.start import Start, beginning, frozen_of
from fedfew.training.start import fresh as fresh_from
from fedfew.util.files import folder_locked


def train(
    federation: Federation,
    model: str | ModelFactory | nn.Module = "mlp",
    method: str | Method = "fedfew",
    *,
    config: TrainConfig | None = None,
    recipe: Recipe = "plain",
    folder: str | Path | None = None,
    resume: bool = False,
    start: Start | None = None,
    progress: bool | None = None,
    on_round: OnRound | Sequence[OnRound] | None = None,
    metrics: Mapping[str, own_metrics.Metric] | None = None,
    **settings: Any,
) -> Run:
    """Train a federation and return the run.

    model: a name ("linear", "mlp", "cnn", "textcnn", "resnet18", …), a zero-argument callable returning an ``nn.Module``, or a
        module, whose weights all models then start from (methods with several server models start them differently with a
        callable alone). It gives one output per class, target or label: as a tensor, as ``logits`` of an object or dict, or as
        the first of a tuple. For token ids, "mlp" stands for "textcnn".
    method: a name, or a method with its settings, e.g. ``FedFew(models=4, mu=0.1)``.
    config: training settings to start from; the keywords listed below change single ones. ``adapters`` may be a
        ``fedfew.adapters.LoRA(rank=8, …)``, and ``loss`` a function.
    recipe: "strong" sets label_prior, server_optimizer, server_average, serve, smoothing_end and, for colour images, augment,
        where they are not given (docs/recipe.md).
    folder: where checkpoints go, every ``checkpoint_every`` rounds; with ``resume`` a run that was stopped there goes on, and
        ends as if it had not been (to the last bit on a CPU).
    start: a finished run to go on with (``rounds`` is then the total), if method, model and number of clients are the same; with
        another method or K, or with a list of modules (``run.models``), a new run begins with these models (docs/recipe.md).
    progress: show a bar (plain lines where there is no terminal and no notebook). None: only on a terminal or in a notebook, and
        if there is no on_round.
    on_round: called after every round with a :class:`Progress`, or several such functions; if one returns "stop", the run ends
        with that round, and its checkpoint is written.
    metrics: functions ``metric(outputs, targets)`` by name; the history has each as ``served_<name>``, a number per client and
        scored round. outputs: what the client's served model gives for its test samples, ``[N, outputs]``; for classes logits.

    Inside a process group of ``torch.distributed`` the processes split each round's clients among them, every one on a GPU of its
    own where there are GPUs. All return the same run; only the first writes checkpoints and calls ``on_round``.
    """
    config, part = _settings(config, recipe, settings, federation)
    criterion = tasks.chosen(config.loss, federation.task)
    chosen = methods.make(method) if isinstance(method, str) else method
    task_settings.check(config, criterion, chosen)
    model, said = model_check.fitting(model, federation, chosen)
    factory = part.of(models.factory(model, federation.shape, federation.classes, federation.vocabulary))
    _check(config, chosen, factory, federation, part)
    said += [*part.said(factory()), *_about_losses(config, chosen, part)]
    group = distributed.group()
    device = distributed.device_of(group, device_named(config.device))
    identity = {"federation": _about(federation), "model": _name(model), "method": chosen.settings()}
    identity |= config.outcome()
    group.check_same(identity | {"rounds": config.rounds})
    config = config.with_loss(criterion)
    if start is not None and resume:
        raise ValueError("start and resume exclude each other: a run is resumed from its own folder")
    begun = None if start is None else beginning(start, identity, config)
    place = None if folder is None else Path(folder)
    locked = folder_locked(place, wait=0) if place is not None and group.first else nullcontext()
    with locked:  # two processes in one folder would overwrite each other's checkpoints
        state, refused = _resumed(place, resume, identity)
        events = [*said, *(f"refused: {reason}" for reason in refused)]
        if begun is not None:
            events.append(f"start: {begun.line}")
            state = begun.state
        if state is not None:
            events += _other_schedule(config, state)
            config = _as_before(config, state)
        factory, chosen = batch_norm_policy.with_policy(config.batch_norm, factory, chosen)
        frozen = frozen_parameters(factory, config.seed) if state is None else state.frozen
        if begun is not None and begun.models:
            frozen = frozen_of(begun.models, frozen)
        factory = holding(factory, dict(named_leaves(frozen)))
        chosen, here = with_attack(config, chosen, federation)
        trained = factory
        if part.freeze == "body":
            here, trained = on_features(here, factory, device)
        here = with_class_weights(with_label_prior(here, config), config)
        member = packed.current()
        here = here.to(device, stream=too_large(here, device)) if member is None else packed.place(member, here, device)
        engine = _engine(config, trained, here, chosen.replicas, group)
        chunk = config.chunk or group.firsts(_clients_that_fit(engine, here.train, chosen.replicas))
        if state is None:
            fresh = fresh_models(factory, config.seed, device)
            if begun is not None:
                fresh = fresh_from(begun.models, factory, fresh, device)
            server, own = chosen.init(fresh, len(federation))
            state = State(0, server, own, History(), {}, frozen=frozen)
        state = state.on(device)
        origin = begun.about() if begun else {name: value for name, value in state.settings.items() if name == "start"}
        state.data = DataRecord.of(federation)
        state.priors = {} if here.train.log_prior is None else {"log_prior": here.train.log_prior}
        versions = {"fedfew": __version__, "torch": torch.__version__}
        computed = {"rounds": config.rounds, "engine": engine.name, "precision": config.precision, "chunk": chunk}
        state.settings = identity | computed | versions | origin
        optimizer = ServerOptimizer(config, engine.trainable, chosen.notes)
        loop = RoundLoop(here, chosen, engine, config, optimizer, chunk, factory, state, place, _listed(on_round), group)
        own_metrics.check(metrics or {}, state.history)
        loop.metrics = metrics or {}
        loop.events += [*events, *task_settings.notes(federation, criterion, recipe), *_without_effect(config, chosen, state)]
        loop.events += _about_engine(engine, config, device)
        if config.keep == "last":
            state.best = {}
        shown = progress_bar.shown(progress if group.first else False, chosen.name, loop.on_round)
        with _full_memory_in_words(chunk, chosen.replicas), shown as loop.on_round:
            run = loop.run()
            run.federation = federation
            return run


def _settings(
    config: TrainConfig | None, recipe: Recipe, settings: Mapping[str, Any], federation: Federation
) -> tuple[TrainConfig, TrainedPart]:
    """The settings of a run, those of the recipe included, and the part of the model that is trained."""
    colour = federation.train.x.ndim == 4 and federation.shape[0] == 3
    augmented = colour and settings.get("freeze", "none" if config is None else config.freeze) == "none"
    config = TrainConfig.of(config, recipe_settings(recipe, augmented, federation.task == "classification") | dict(settings))
    part = TrainedPart.named(config.adapters, config.freeze)
    return replace(config, **part.settings()), part


def _check(config: TrainConfig, method: Method, factory: ModelFactory, federation: Federation, part: TrainedPart) -> None:
    """Refuse settings that do not fit together, or not these data, before anything is trained."""
    method.check_against(len(federation))
    config.check_aggregator(len(federation))
    products.check(config, method)
    privacy.check(config, method)
    batch_norm_policy.check(config.batch_norm, factory(), method, federation, config.batch_size)
    check_augment(config, federation.train)
    part.check(config)
    validation.check(config, federation)
    model_check.check_outputs(factory(), federation)


def _about_engine(engine: Engine, config: TrainConfig, device: torch.device) -> list[str]:
    """Why this engine was chosen, and whether its precision has an effect."""
    lines = [f"engine: {engine.name}, {engine.why}"] if engine.why else []
    if config.precision == "bf16" and device.type == "cpu":
        lines.append("precision is 'bf16', which has no effect here: a CPU computes in float32")
    return lines


@contextmanager
def _full_memory_in_words(chunk: int, replicas: int) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(
            f"the GPU's memory is full with {chunk} clients at once, {replicas} models each: give a smaller chunk "
            f"(--chunk {max(1, chunk // 2)}), or run less beside it. PyTorch says: {str(error).partition('. ')[0]}"
        ) from error


def _listed(on_round: OnRound | Sequence[OnRound] | None) -> Sequence[OnRound]:
    if on_round is None:
        return ()
    return (on_round,) if callable(on_round) else on_round


def _without_effect(config: TrainConfig, method: Method, state: State) -> list[str]:
    """Settings that do nothing here, one line each."""
    found = config.without_effect()
    served = leaves(method.candidates(state.server, state.own, torch.tensor([0])))[0].shape[1]
    if config.server_optimizer != "none" and not method.aggregates:
        found.append(f"server_optimizer is {config.server_optimizer}, but {method.name} averages no updates: it has no effect")
    found += aggregator_without_effect(config, method) + privacy.notes(config, state.settings["federation"]["clients"])
    if config.serve == "mixture" and method.mixture(take(state.own, slice(1))) is not None:
        found.append(f"serve is mixture, but {method.name} learns the weights of its mixture: temperature has no effect")
    elif config.serve == "mixture" and served == 1:
        found.append(f"serve is mixture, but {method.name} serves each client a single model: it has no effect")
    if config.smoothing_end != 1 and method.smoothed(0.5) == method:
        found.append(f"smoothing_end is {config.smoothing_end:g}, but {method.name} has no smoothing: it has no effect")
    if config.restart_unused and not restart.applies(method, state.server, served):
        found.append(f"restart_unused is {config.restart_unused}, but {method.name} keeps no K whole models: it has no effect")
    if isinstance(method, FedBN) and not state.own:
        found.append("fedbn: the model has no BatchNorm layer, so this is fedavg")
    return found


def _about_losses(config: TrainConfig, method: Method, part: TrainedPart) -> list[str]:
    """A line where the losses that clients report hardly tell the models apart (docs/adapters.md)."""
    if part.adapters is None or config.local_epochs < 2 or not isinstance(method, FedFew) or method.models < 2:
        return []
    if method.loss_at == "received":
        return []
    return [
        f"loss_at is training: with adapters and {config.local_epochs} local epochs the losses of the last epoch hardly differ "
        "between models, and these may not separate. Set loss_at='received'"
    ]


def aggregator_without_effect(config: TrainConfig, method: Method) -> list[str]:
    """Lines about settings of the server's mean, for a method that has none."""
    found = [] if config.aggregator == "mean" or method.averages else [f"aggregator is {config.aggregator}"]
    found += ["average of adapters is product"] if products.wanted(config) and not method.aggregates else []
    return [f"{setting}, but {method.name} averages no updates: it has no effect" for setting in found]


def _documented(function: Callable[..., Run]) -> None:
    """Show the training settings in the function's signature and docstring, from their one declaration."""
    own = inspect.signature(function)
    named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(f.name, keyword, default=f.default, annotation=f.type) for f in fields(TrainConfig)]
    function.__signature__ = own.replace(parameters=[*named, *added])  # type: ignore[attr-defined]  # a function can have one
    lines = [f"    {f.name}: {f.metadata['about']} (default: {f.default!r})" for f in fields(TrainConfig)]
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nTraining settings:\n" + "\n".join(lines)


_documented(train)


def _about(federation: Federation) -> dict[str, Any]:
    """What a run records of its federation."""
    return {
        "name": federation.name,
        "clients": len(federation),
        "classes": federation.classes,
        "task": federation.task,
        "shape": list(federation.shape),
        "vocabulary": federation.vocabulary,
        "test_samples": federation.test.count.tolist(),
        "pixels": federation.train.pixels,
        "dtype": str(federation.train.x.dtype).removeprefix("torch."),
        "fingerprint": federation.fingerprint(),
    }


def _as_before(config: TrainConfig, state: State) -> TrainConfig:
    """The settings of a run that goes on: engine and chunk as they were chosen, unless given."""
    if state.round > config.rounds:
        raise ValueError(f"rounds is {config.rounds}, but the run has already done {state.round}")
    before = state.settings
    return replace(
        config,
        engine=before["engine"] if config.engine == "auto" else config.engine,
        chunk=before["chunk"] if config.chunk is None else config.chunk,
    )


def _other_schedule(config: TrainConfig, state: State) -> list[str]:
    """Lines where a run goes on to another number of rounds than the one that the rounds done were planned for."""
    planned, found = state.settings["rounds"], []
    if config.schedule != "constant" and planned != config.rounds:
        found.append(
            f"rounds was {planned} and is {config.rounds} now: the learning rate goes on by a {config.schedule} schedule over "
            f"{config.rounds} rounds; that of the {state.round} rounds done was by one over {planned}"
        )
    if config.smoothing_of(state.round) != replace(config, rounds=planned).smoothing_of(state.round):
        found.append(
            f"rounds was {planned} and is {config.rounds} now: smoothing_end applies to the last quarter of all; "
            f"it has applied to the last quarter of {planned} already"
        )
    return found


def _engine(config: TrainConfig, factory: ModelFactory, here: Federation, replicas: int, group: distributed.Group) -> Engine:
    def make(name: str) -> Engine:
        return engines.make(name, factory().to(here.train.y.device), config.local, config.seed, here.train, replicas)

    engine = make(config.engine)
    agreed = group.firsts(engine.name)  # trials in different processes may differ, but all must train alike
    return engine if agreed == engine.name else make(agreed)


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


def _name(model: str | ModelFactory | nn.Module) -> str:
    """The model's name, or module:name of a user's own factory or class."""
    if isinstance(model, str):
        return model
    factory = model.model if isinstance(model, OwnModel) else model
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
