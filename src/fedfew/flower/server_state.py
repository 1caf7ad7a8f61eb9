"""The server's state in a run on a network: models, what it knows of the sites, and checkpoints of both."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfew._version import __version__
from fedfew.data.tokens import Tokens
from fedfew.evaluation.costs import expected_reply
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.messages import RefusedError
from fedfew.flower.registry import OF_DATA, Member, common_data
from fedfew.models import ModelFactory
from fedfew.models.state import buffer_names, frozen_hash, holding
from fedfew.stack import Tree, leaves, named_leaves, take
from fedfew.tasks import CLASSIFICATION, chosen
from fedfew.training import batch_norm_policy, checkpoint, notes, own_randomness, task_settings
from fedfew.training.checkpoint import State
from fedfew.training.data_record import DataRecord
from fedfew.training.history import History
from fedfew.training.initialisation import fresh_models, frozen_parameters, note_on_equal_starts
from fedfew.training.resume import schedule_notes
from fedfew.training.run import Run
from fedfew.training.run_files import ABOUT_DATA
from fedfew.training.server_optimizer import ServerOptimizer
from fedfew.training.server_step import ServerStep
from fedfew.util.files import write_atomically

MakeFactory = Callable[[dict[str, Any]], ModelFactory]  # from what the sites' data have in common


class ServerState:
    """A run's state, new or read from the newest checkpoint in the folder.

    ``state.sites`` is what the server knows of the sites: the run's identifier at the sites (``run``), numbers of samples, and
    per client the last round in which its reply was used (``last``) and the value of ``last`` at the second newest checkpoint
    (``keep``: no older private state of the client will be needed).
    """

    def __init__(
        self, config: DeploymentConfig, found: FoundState | None, members: list[Member], make_factory: MakeFactory
    ) -> None:
        """found: what :func:`in_folder` read."""
        self.config = config
        self.folder = Path(config.folder)
        self.events: list[str] = [] if found is None else found.events  # what happened when it was read
        self.state, data = _new(config, members) if found is None else (found.state, found.state.settings["federation"])
        task_settings.check(config, chosen(config.loss, data["task"]), config.make_method())
        factory = config.part.of(make_factory(data))
        batch_norm_policy.check_model(config.batch_norm, factory(), config.make_method())
        self.factory, self.method = batch_norm_policy.with_policy(config.batch_norm, factory, config.make_method())
        if found is None:
            self.state.frozen = frozen_parameters(self.factory, config.seed)
        self.factory = holding(self.factory, dict(named_leaves(self.state.frozen)))
        fresh = fresh_models(self.factory, config.seed, torch.device("cpu"))
        server, own = self.method.init(fresh, config.clients)
        self.like = expected_reply(self.method, self.factory(), server, own)  # a client's reply, for its names, shapes and types
        if found is None:
            self.state.server = server
            self.events += [*config.part.notes(self.factory()), *note_on_equal_starts(fresh, self.method.replicas)]
            self._keep_tokenizer(data)
        buffers = buffer_names(self.factory())
        self.optimizer = ServerOptimizer(config, lambda path: path.rpartition("/")[2] not in buffers, self.method.notes)
        about = {"name": data["name"], "clients": config.clients, "test_samples": self.sites["test_samples"]}
        self.data = about | {name: data[name] for name in ("classes", *OF_DATA)}
        more = {"rounds": config.rounds, "engine": "flower", "fedfew": __version__, "torch": torch.__version__}
        self.state.settings = _comparable(config) | {"federation": self.data} | more
        self.notes = self._notes(own)
        self._last, self._written = list(self.sites["last"]), self.state.round  # at the newest checkpoint
        data_settings = {name: self.data[name] for name in ("shape", "classes", "vocabulary", "task", "padding")}
        self._site_settings = json.dumps(config.for_sites() | data_settings | {"frozen": frozen_hash(self.factory())})

    def _keep_tokenizer(self, data: dict[str, Any]) -> None:
        """Record the tokeniser of the sites' texts, so that exports take raw texts, where the server has it as well."""
        if data["tokenizer"] is None:
            return
        without = "the sites encode texts, but exports of this run take token ids alone"
        if not self.config.tokenizer:
            self.events.append(f"tokenizer: {without}, since the run's configuration names none")
            return
        try:
            tokens = Tokens.of(self.config.tokenizer, data["shape"][0])
        except (ImportError, ValueError) as error:
            self.events.append(f"tokenizer: {without}, since the server cannot read it ({error})")
            return
        if tokens.sha256 != data["tokenizer"]:
            raise ValueError(f"tokenizer: {self.config.tokenizer} of the server is not the one of the sites: give all the same")
        self.state.data = DataRecord(columns=("text",), preprocessing=tokens)

    def _notes(self, own: Tree) -> list[str]:
        """The lines about settings that the simulator prints, too; own: the clients' private states as they begin."""
        config, data, module = self.config, self.data, self.factory()
        found = notes.without_effect(config, self.method, replace(self.state, own=own), module)
        found += [*notes.about_losses(config, self.method, config.part), *notes.about_momentum(config, self.method)]
        if config.freeze == "none":  # else a linear layer is trained alone
            x = torch.zeros(2, *data["shape"], dtype=torch.int64 if data["vocabulary"] else torch.float32)
            with suppress(Exception):  # a model that does not take zeros gets no line
                found += own_randomness.note_on(module, x)
        return found

    @property
    def sites(self) -> dict[str, Any]:
        return self.state.sites

    @property
    def token(self) -> str:
        """The run's identifier at the sites; it stays the same when the server is restarted."""
        token: str = self.sites["run"]
        return token

    def check_fits(self, member: Member) -> None:
        """Refuse a site whose data do not fit the run's."""
        for what in OF_DATA:
            mine = getattr(member, what)
            mine = list(mine) if what == "shape" else mine if what == "padding" else mine or None
            if mine != self.data[what]:
                raise RefusedError(f"{what} of its data is {mine}, the run's is {self.data[what]}")
        if member.task != CLASSIFICATION.name and member.classes != self.data["classes"]:
            raise RefusedError(f"it has {member.classes} targets or labels, the run {self.data['classes']}")
        if member.classes > self.data["classes"]:
            raise RefusedError(f"it has {member.classes} classes, the run {self.data['classes']}")

    def dispatched(self, clients: Tensor, served: bool = False) -> dict[int, Tree]:
        """What each of the clients receives, to train or (served) to use; one tree for all where all receive the same."""
        received = self.method.dispatch(self.state.served if served else self.state.server, clients)
        if not leaves(received) or leaves(received)[0].shape[0] == 1:
            return dict.fromkeys(clients.tolist(), take(received, 0))
        return {client: take(received, row) for row, client in enumerate(clients.tolist())}

    def values(self, client: int, number: int) -> dict[str, Any]:
        """The values of a message to a client in a round, besides its models."""
        last, keep = self.sites["last"][client], self.sites["keep"][client]
        return {"run": self.token, "round": number, "last": last, "keep": keep, "settings": self._site_settings}

    def complete(self, number: int, step: ServerStep, drawn: int, answered: list[int]) -> None:
        """Record that a round is complete."""
        step.complete(self.state, number)
        self.state.left_out += drawn - len(answered)
        for client in answered:
            self.sites["last"][client] = number

    def write(self, members: Iterable[Member]) -> None:
        """Write a checkpoint; sites then need no private state older than that of the checkpoint before it."""
        for member in members:
            self.sites["samples"][member.client] = member.samples
            self.sites["test_samples"][member.client] = member.test_samples
        if self._written < self.state.round:
            self.sites["keep"], self._last, self._written = self._last, list(self.sites["last"]), self.state.round
        checkpoint.write(self.folder, self.state)
        about = {"train": self.sites["samples"], "test": self.sites["test_samples"], "pixels": self.data["pixels"]}
        write_atomically(self.folder / ABOUT_DATA, json.dumps(about))

    def result(self) -> Run:
        return Run(self.state, self.factory, self.method)


@dataclass(frozen=True)
class FoundState:
    """The state in the newest usable checkpoint of a folder, and what is to be said about it."""

    state: State
    events: list[str]


def in_folder(config: DeploymentConfig) -> FoundState | None:
    """What the run continues from; None: it is new. Refuses a folder whose run it cannot continue."""
    folder = Path(config.folder)
    if not checkpoint.checkpoints(folder):
        return None
    state, refused = checkpoint.read_newest(folder, _comparable(config))
    data = state.settings["federation"]
    for name in ("clients", "classes"):
        given = getattr(config, name)
        if given and given != data[name]:  # classes may be 0: as many as sites report
            raise ValueError(f"{name} is {given}, but the run in {folder} has {data[name]}: keep that, or set another folder")
    recorded = len(state.history) > 0 and int(state.history.last("round")) == state.round
    if state.round > config.rounds or (state.round == config.rounds and recorded):
        raise ValueError(
            f"rounds is {config.rounds}, but the run in {folder} has done {state.round}: set more rounds or another folder"
        )
    events = [*(f"refused: {reason}" for reason in refused), f"resumed after round {state.round}"]
    events += schedule_notes(config, state)
    if state.round and not recorded and config.scores(state.round):
        events.append(f"round {state.round} is not in the history: the server was stopped before it was scored")
    return FoundState(state, events)


def _comparable(config: DeploymentConfig) -> dict[str, Any]:
    """The settings that a checkpoint must have been made with."""
    return {"method": config.make_method().settings(), "model": config.model, **config.outcome()}


def _new(config: DeploymentConfig, members: list[Member]) -> tuple[State, dict[str, Any]]:
    sites: dict[str, Any] = {"run": uuid.uuid4().hex}
    sites |= {name: [0] * config.clients for name in ("last", "keep", "samples", "test_samples")}
    return State(0, {}, {}, History(), {}, sites=sites), common_data(members, config.classes)
