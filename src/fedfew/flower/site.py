"""A site's work: it trains on its own data and keeps its private state.

STATE/client-N/audit.jsonl            every message that left the site: names, shapes, bytes and norms
STATE/client-N/errors.log             errors in full; the server learns their category alone
STATE/client-N/RUN/own-R              the client's private state after round R of a run
STATE/client-N/RUN/masked/            an update that waits to be masked (:mod:`fedfew.flower.pending_update`)
STATE/client-N/RUN/model.safetensors  the model that the client chose when the run ended, and choice.json beside it
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedfew._version import __version__
from fedfew.data.tokens import Tokens
from fedfew.federation import Federation
from fedfew.flower import site_data, site_model, wire
from fedfew.flower.client_state import ClientStates
from fedfew.flower.messages import JOIN, MASK, REVEAL, SCORE, SHARE_KEYS, TRAIN, RevealedError, SiteMessage
from fedfew.flower.secure import WeightError
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import SiteError, fails_as
from fedfew.flower.site_task import Model, Task, run_of
from fedfew.local import Local
from fedfew.methods import Method, Outcome
from fedfew.methods.base import returned
from fedfew.stack import Tree, branch, leaves, take, to, tree_map
from fedfew.training import task_settings
from fedfew.training.initialisation import fresh_models
from fedfew.training.notes import about_engine
from fedfew.training.scoring import ServedScores, score
from fedfew.training.usable import usable

if TYPE_CHECKING:
    from fedfew.flower.pending_update import PendingUpdate

log = logging.getLogger("flwr.fedfew")  # below Flower's logger


class Site:
    """One client of a federation."""

    def __init__(self, config: SiteConfig, model: Model) -> None:
        self.config = config
        self.model = model

    @property
    def folder(self) -> Path:
        return self.config.state / f"client-{self.config.client}"

    def handle(self, message: SiteMessage) -> SiteMessage:
        """Do what a message asks for; the reply."""
        with fails_as("request"):
            handler = {
                JOIN: self._join,
                TRAIN: self._train,
                SCORE: self._score,
                **dict.fromkeys((SHARE_KEYS, MASK, REVEAL), self._masked_step),
            }[message.kind]
        return handler(message)

    # -- requests ------------------------------------------------------------------------------------------------------------

    def _join(self, message: SiteMessage) -> SiteMessage:
        """Report which client this is, and the size and shape of its data."""
        with fails_as("data"):
            federation = site_data.load(self.config)
            values: dict[str, Any] = {
                "client": self.config.client,
                "samples": int(federation.train.count[0]),
                "classes": federation.classes,
                "shape": list(federation.shape),
                "vocabulary": federation.vocabulary or 0,
                "pixels": federation.train.pixels,
                "task": federation.task,
                **_of_texts(federation),
                "name": federation.name,
                "version": __version__,
            }
            if self.config.share_scores:
                values["test_samples"] = int(federation.test.count[0])
        return SiteMessage(JOIN, values)

    def _train(self, message: SiteMessage) -> SiteMessage:
        """Train one round, from the private state after the last round in which this client's reply was used."""
        task = Task.of(message, self.config, self.model)
        if task.settings["aggregation"] == "masked":
            with fails_as("state"):
                self._check_not_revealed(task)
        last, keep = message.integer("last"), message.integer("keep")
        if last == 0:  # before this client's first round
            about_task = task_settings.notes(task.data, task.engine.criterion, "plain")
            for line in [*about_task, *about_engine(task.engine, task.training, task.device)]:
                log.warning(line)
        state, started_from = self._private_state(task, last)
        with fails_as("training"):
            received = to(tree_map(lambda t: t[None], message.tree), task.device)
            sample_share = torch.tensor([message.number("sample_share")], dtype=torch.float64, device=task.device)
            local = Local(task.engine, task.data.train, task.data.ids, task.round, sample_share)
            method = task.method.smoothed(task.training.smoothing_of(task.round))
            outcome = method.client(received, to(branch(state, "own"), task.device), local)
            outcome = _usable(returned(method, "client", outcome, Outcome, "an Outcome"))
            if message.flag("scored") and method.finishes:
                own = _finished(method, outcome.own, local)
                outcome = replace(outcome, own=own, adapted=method.serve(received, own))
            reply = outcome.reply
            update = to(take(reply.update, 0), "cpu")
            sent, residual = wire.outgoing(update, branch(state, "wire"), task.settings["compression"])
            values: dict[str, Any] = self._header(task) | {
                "losses": [float(loss) for loss in reply.losses[0]],
                "samples": int(reply.samples[0]),
                "started_from": started_from,
            }
            if reply.unseen is not None and bool(reply.unseen.isfinite().all()):
                values["unseen"] = [float(loss) for loss in reply.unseen[0]]
            if message.flag("scored") and self.config.share_scores:
                values |= site_model.reported(self._score_candidates(task, outcome.adapted, outcome.mixture))
        with fails_as("state"):
            new_state: Tree = {"own": outcome.own, "wire": residual}
            if leaves(new_state):
                self._states(task.run).write(task.round, new_state, keep_from=min(keep, last))
            if task.settings["aggregation"] == "masked":  # the update stays here until it is masked
                pending, max_norm = self._pending_update(task.run), task.settings["clip_norm"]
                keys = pending.begin(self.config.client, message.text("session"), sent, max_norm, self.config.most_weight)
                values["keys"], sent = keys, {}
        return SiteMessage(TRAIN, values, sent)

    def _masked_step(self, message: SiteMessage) -> SiteMessage:
        """A further step of masked aggregation, with the update that waits since training."""
        with fails_as("request"):
            try:
                sent = self._pending_update(run_of(message)).handle(message)
            except WeightError as error:
                raise SiteError("weight") from error
            header: dict[str, Any] = {"client": self.config.client, "run": run_of(message), "round": message.integer("round", 1)}
        return SiteMessage(message.kind, header, sent)

    def _score(self, message: SiteMessage) -> SiteMessage:
        """Choose among the aggregated models by this client's own data and score the choice; after the last round, save it."""
        task = Task.of(message, self.config, self.model)
        state, _ = self._private_state(task, message.integer("last"))
        with fails_as("training"):
            received = to(tree_map(lambda t: t[None], message.tree), task.device)
            no_share = torch.zeros(1, dtype=torch.float64, device=task.device)
            local = Local(task.engine, task.data.train, task.data.ids, task.round, no_share)
            own = _finished(task.method, to(branch(state, "own"), task.device), local)
            candidates = task.method.serve(received, own)
            scores = self._score_candidates(task, candidates, task.method.mixture(own))
        values: dict[str, Any] = self._header(task)
        if message.flag("final"):
            with fails_as("state"):
                site_model.save(self.folder / task.run, task, self.model, take(candidates, 0), scores)
        if self.config.share_scores:
            values |= site_model.reported(scores)
        return SiteMessage(SCORE, values)

    # -- parts ---------------------------------------------------------------------------------------------------------------

    def _private_state(self, task: Task, last: int) -> tuple[Tree, int]:
        """The client's state after round ``last``, or else the newest before this round or the initial one; and its round."""
        with fails_as("state"):
            states = self._states(task.run)
            older = [number for number in reversed(states.rounds()) if number < task.round and number != last]
            for number in [last, *older] if last else []:
                state = states.read(number)
                if state is not None:  # without a state of the method's own it holds compression's residual, which may be older
                    return state, number if leaves(branch(state, "own")) else last
            fresh = fresh_models(task.factory, task.settings["seed"], task.device)
            _, own = task.method.init(fresh, task.settings["clients"])
            return {"own": take(own, torch.tensor([self.config.client], device=task.device))}, 0 if leaves(own) else last

    def _score_candidates(self, task: Task, candidates: Tree, learned: Tensor | None) -> ServedScores:
        """Which of the candidates ``[1, S, …]`` has the least loss on this client's data, and the test scores of what it uses."""
        data = task.data
        return score(task.engine, candidates, data.val or data.train, data.test, task.training, learned)

    def _pending_update(self, run: str) -> PendingUpdate:
        from fedfew.flower.pending_update import PendingUpdate  # imports cryptography

        return PendingUpdate(self.folder / run)

    def _states(self, run: str) -> ClientStates:
        return ClientStates(self.folder / run)

    def _check_not_revealed(self, task: Task) -> None:
        try:
            self._pending_update(task.run).check_not_revealed(task.round)
        except RevealedError as error:
            raise SiteError("revealed") from error

    def _header(self, task: Task) -> dict[str, Any]:
        return {"client": self.config.client, "run": task.run, "round": task.round}


def _of_texts(federation: Federation) -> dict[str, Any]:
    """Of texts with a tokeniser: its hash and its token of padding, which must be the same at all sites."""
    tokens = federation.preprocessing
    return {"tokenizer": tokens.sha256, "padding": tokens.padding} if isinstance(tokens, Tokens) else {}


def _usable(outcome: Outcome) -> Outcome:
    """The outcome without the models that are not finite: their loss is +inf and their update 0. Where none is left all losses
    are NaN, and the server refuses the reply."""
    good, left = usable(outcome)
    if len(good):
        return left
    return replace(outcome, reply=replace(outcome.reply, losses=torch.full_like(outcome.reply.losses, torch.nan)))


def _finished(method: Method, own: Tree, local: Local) -> Tree:
    """The client's private state, ready to be served; the site's log has a line where that diverged."""
    finished = method.finish(own, local)
    diverged = method.diverged(finished)
    if diverged is not None and int(diverged[0]):
        log.warning(
            "round %d: fine-tuning diverged (lower lr): this client keeps the model that it started from", int(diverged[0])
        )
    return finished
