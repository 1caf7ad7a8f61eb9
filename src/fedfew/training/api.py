"""The way in: :func:`train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedfew import engines
from fedfew._version import __version__
from fedfew.adapters.cached import on_features
from fedfew.config import Recipe, TrainConfig
from fedfew.config.documented import documents_settings
from fedfew.engines import Engine, packed
from fedfew.engines.memory import clients_that_fit, too_large
from fedfew.federation import Federation
from fedfew.methods import Method
from fedfew.methods.base import returned
from fedfew.models import ModelFactory
from fedfew.models.state import holding
from fedfew.stack import named_leaves
from fedfew.training import batch_norm_policy, notes, own_metrics, own_randomness, unseen
from fedfew.training.attack import with_attack
from fedfew.training.checkpoint import State
from fedfew.training.class_weights import with_class_weights
from fedfew.training.data_record import DataRecord
from fedfew.training.distributed import Group
from fedfew.training.history import History
from fedfew.training.initialisation import fresh_models, frozen_parameters, note_on_equal_starts
from fedfew.training.label_prior import with_label_prior
from fedfew.training.loop import RoundLoop
from fedfew.training.on_round import OnRound
from fedfew.training.progress import shown as progress_shown
from fedfew.training.resume import schedule_notes, state_in, with_recorded
from fedfew.training.run import Run
from fedfew.training.server_optimizer import ServerOptimizer
from fedfew.training.setup import Setup
from fedfew.training.start import Beginning, Start, beginning, frozen_of
from fedfew.training.start import fresh as fresh_from
from fedfew.util.files import folder_locked


@documents_settings
@torch.inference_mode(False)
@torch.enable_grad()  # it computes gradients, also where it is called inside torch.no_grad() or torch.inference_mode()
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
    recipe: "strong" sets label_prior, server_optimizer, server_average, serve, smoothing_end, check_share and, for colour
        images, augment, where they are not given (docs/recipe.md).
    folder: where checkpoints go, every ``checkpoint_every`` rounds; with ``resume`` a run that was stopped there is continued,
        with the same result as without the stop (to the last bit on a CPU).
    start: a finished run to continue (``rounds`` is then the total), if method, model and number of clients are the same; with
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
    setup = Setup.of(federation, model, method, config, recipe, settings)
    if start is not None and resume:
        raise ValueError("start and resume exclude each other: a run is resumed from its own folder")
    begun = None if start is None else beginning(start, setup.identity, setup.config)
    place, first = None if folder is None else Path(folder), setup.group.first
    with nullcontext() if place is None or not first else folder_locked(place, wait=0):  # one process per folder
        state, refused = state_in(place, resume, setup.identity)
        loop = _prepared(setup, state if begun is None else begun.state, begun, place)
        loop.events[:0] = [f"refused: {reason}" for reason in refused]
        own_metrics.check(metrics or {}, loop.state.history)
        loop.metrics = metrics or {}
        shown = progress_shown(progress if first else False, setup.method.name, _listed(on_round))
        with _full_memory_in_words(loop.chunk, setup.method.replicas), shown as loop.on_round:
            run = loop.run()
            run.federation = federation
            return run


def _prepared(setup: Setup, state: State | None, begun: Beginning | None, folder: Path | None) -> RoundLoop:
    """The loop, ready for its next round: the first one, unless there is a state to continue from."""
    config, federation, device, group = setup.config, setup.federation, setup.device, setup.group
    events = list(setup.notes) if begun is None else [*setup.notes, f"start: {begun.line}"]
    if state is not None:
        events += schedule_notes(config, state)
        config = with_recorded(config, state)
    given = () if begun is None else begun.models
    factory, method = batch_norm_policy.with_policy(config.batch_norm, setup.factory, setup.method)
    frozen = frozen_parameters(factory, config.seed) if state is None else state.frozen
    frozen = frozen_of(given, frozen) if given else frozen
    factory = holding(factory, dict(named_leaves(frozen)))
    method, here = with_attack(config, method, federation)
    here, trained = on_features(here, factory, device) if setup.part.freeze == "body" else (here, factory)
    here = unseen.kept_apart(here, config, method)
    here = _placed(with_class_weights(with_label_prior(here, config), config), device)
    engine = _engine(config, trained, here, method.replicas, group)
    chunk = config.chunk or group.firsts(clients_that_fit(engine, here.train, method.replicas))
    if state is None:
        fresh = fresh_models(factory, config.seed, device)
        events += [] if given else note_on_equal_starts(fresh, method.replicas)
        begin = method.init(fresh_from(given, factory, fresh, device) if given else fresh, len(federation))
        server, own = returned(method, "init", begin, tuple, "the server's state and those of all clients")
        state = State(0, server, own, History(), {}, frozen=frozen)
    state = state.on(device)
    origin = {"start": begun.line} if begun else {name: value for name, value in state.settings.items() if name == "start"}
    state.data = DataRecord.of(federation)
    state.priors = {} if here.train.log_prior is None else {"log_prior": here.train.log_prior}
    versions = {"fedfew": __version__, "torch": torch.__version__}
    computed = {"rounds": config.rounds, "engine": engine.name, "precision": config.precision, "chunk": chunk}
    state.settings = setup.identity | computed | versions | origin
    if config.keep == "last":
        state.best = {}
    events += [*notes.without_effect(config, method, state, factory()), *notes.about_engine(engine, config, device)]
    events += own_randomness.note(trained(), here.train)
    optimizer = ServerOptimizer(config, engine.trainable, method.notes)
    return RoundLoop(here, method, engine, config, optimizer, chunk, factory, state, folder, (), group, events)


def _placed(federation: Federation, device: torch.device) -> Federation:
    """The federation on the device; runs of a pack share what they have in common there."""
    member = packed.current()
    if member is not None:
        return packed.place(member, federation, device)
    return federation.to(device, stream=too_large([federation.train, federation.test], device))


def _engine(config: TrainConfig, factory: ModelFactory, here: Federation, replicas: int, group: Group) -> Engine:
    def make(name: str) -> Engine:
        return engines.make(name, factory().to(here.train.y.device), config.local, config.seed, here.train, replicas)

    engine = make(config.engine)
    agreed = group.firsts(engine.name)  # trials in different processes may differ, but all must train alike
    return engine if agreed == engine.name else make(agreed)


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
    listed = (on_round,) if callable(on_round) else on_round
    if not isinstance(listed, Sequence) or not all(map(callable, listed)):
        raise TypeError(f"on_round must be a function of the progress or a list of functions, not {on_round!r}")
    return listed
