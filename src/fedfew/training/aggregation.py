"""The server's half of a round: replies taken in as they come, and what is written down of them.

The simulator and a real server both go through here, so that a round means the same wherever its clients are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedfew.methods import Method
from fedfew.methods.base import Outcome, Reply
from fedfew.stack import Tree, WeightedMean, branch, finite, leaves, take, tensor, tree_map
from fedfew.training.checkpoint import State
from fedfew.training.distributed import Group
from fedfew.training.scoring import ServedScores
from fedfew.training.server_optimizer import ServerOptimizer, averaged


class PerClient:
    """What is known of each of M clients by name (choice, accuracy, loss, …), NaN where there is nothing yet."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.columns: dict[str, Tensor] = {}

    def put(self, clients: Tensor, scores: ServedScores) -> None:
        """Write down the scores of the clients at these positions."""
        self._put(clients, {name: value for name, value in vars(scores).items() if value is not None})

    def _put(self, clients: Tensor, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            empty = torch.nan if value.is_floating_point() else -1
            self.columns.setdefault(name, torch.full((self.clients, *value.shape[1:]), empty, dtype=value.dtype))[clients] = value

    def merge(self, other: PerClient) -> None:
        """Take in the scores of other clients."""
        if other.columns:
            theirs = (other.columns["choice"] >= 0).nonzero()[:, 0]
            self._put(theirs, {name: column[theirs] for name, column in other.columns.items()})

    @property
    def chosen(self) -> tuple[Tensor, Tensor | None]:
        """Which candidate each client uses, and the weights of its mixture, where one is served."""
        return self.columns["choice"], self.columns.get("mixture")

    def __getitem__(self, name: str) -> Tensor:
        """A column; where nobody has been scored, of clients without a score."""
        return self.columns.get(name, torch.full((self.clients,), torch.nan))


@dataclass(frozen=True)
class ServerStep:
    """What a round makes of the server's state."""

    server: Tree
    moments: Tree
    average: Tree

    @classmethod
    def none(cls, state: State) -> ServerStep:
        """A step that leaves the server as it is."""
        return cls(state.server, state.moments, state.average)

    @property
    def served(self) -> Tree:
        return self.average or self.server

    def complete(self, state: State, round: int) -> None:
        """Take the step: the round is done."""
        state.server, state.moments, state.average, state.round = self.server, self.moments, self.average, round


class Aggregation:
    """A round as the server sees it: :meth:`add` what clients sent, a chunk at a time, then ask for the :meth:`result`.

    share: n_i / Σ_j n_j over the clients that the round was begun with, 0 for all others, [M].
    """

    def __init__(self, method: Method, state: State, share: Tensor, optimizer: ServerOptimizer) -> None:
        self.method = method
        self.optimizer = optimizer
        self.share = share
        self.adapted = PerClient(len(share))
        self.losses: Tensor | None = None  # [M, K], NaN: no reply
        self.bytes_up = 0
        self.bytes_down = 0
        self._state = state
        self._mean: WeightedMean | None = None
        self._answered: list[Tensor] = []
        self._noted: list[tuple[Tensor, Reply]] = []  # for a method that absorbs single replies

    def add(self, clients: Tensor, reply: Reply) -> None:
        """Take in the replies of the clients at these positions; they must be :func:`usable`."""
        if self.losses is None:
            self.losses = torch.full((len(self.share), reply.losses.shape[1]), torch.nan)
        unusable = reply.losses.cpu() == torch.inf
        self.losses[clients] = reply.losses.cpu().float().masked_fill(unusable, torch.nan)
        self.bytes_up += reply.bytes_each * len(clients)
        if reply.update:
            self._mean = self._mean or WeightedMean(reply.losses.shape[1])
            of = reply, self.share[clients], clients
            log_weights = self.method.log_weights(*of).cpu().masked_fill(unusable, -torch.inf)
            self._mean.add(log_weights, reply.update, self.method.log_whole(*of))
        if self.method.absorbs:
            self._noted.append((clients, reply))
        self._answered.append(clients)

    def add_mean(self, mean: WeightedMean) -> None:
        """The updates' weighted mean itself, where they were added up elsewhere (under masks, which hide single ones)."""
        self._mean = mean

    def join(self, group: Group, own: list[tuple[Tensor, Tree]], device: torch.device) -> list[tuple[Tensor, Tree]]:
        """Take in what the clients of other processes sent, so that all processes hold the same; everyone's own states."""
        gathered = group.everyones((self.losses, self.adapted, self.bytes_up, self.bytes_down, self._answered))
        mine: Tree = {"mean": {} if self._mean is None else self._mean.parts()}
        for i, (clients, state) in enumerate(own):
            mine[f"own{i}"] = {"clients": clients, "own": state}
        for i, (clients, reply) in enumerate(self._noted):
            mine[f"noted{i}"] = {"clients": clients, "update": reply.update, "losses": reply.losses, "samples": reply.samples}
        self.losses, self.adapted, self.bytes_up, self.bytes_down, self._answered = None, PerClient(len(self.share)), 0, 0, []
        for losses, adapted, bytes_up, bytes_down, answered in gathered:
            if losses is not None:
                self.losses = losses if self.losses is None else torch.where(losses.isnan(), self.losses, losses)
            self.adapted.merge(adapted)
            self.bytes_up += bytes_up
            self.bytes_down += bytes_down
            self._answered += answered
        self._mean, self._noted = None, []
        everyones: list[tuple[Tensor, Tree]] = []
        for theirs in group.everyones_trees(mine, device):
            for name in theirs:
                part = branch(theirs, name)
                if name.startswith("own"):
                    everyones.append((tensor(part, "clients").cpu(), branch(part, "own")))
                elif name.startswith("noted"):
                    reply = Reply(branch(part, "update"), tensor(part, "losses"), tensor(part, "samples"))
                    self._noted.append((tensor(part, "clients").cpu(), reply))
                elif part:
                    self._mean = self._mean or WeightedMean(len(tensor(part, "total")))
                    self._mean.merge(part)
        return everyones

    @property
    def answered(self) -> Tensor:
        """Positions of the clients whose replies were taken in."""
        return torch.cat(self._answered) if self._answered else torch.zeros(0, dtype=torch.int64)

    @property
    def loss(self) -> float:
        """Mean over clients of the least loss they reported."""
        assert self.losses is not None, "nobody answered"
        return float(self.reported(self.answered).amin(1).mean())

    def reported(self, clients: Tensor) -> Tensor:
        """The losses [C, K] of clients that answered, +inf for a model that a client cannot use."""
        assert self.losses is not None, "nobody answered"
        return self.losses[clients].nan_to_num(nan=torch.inf)

    def result(self) -> ServerStep | None:
        """The server's new state; None where nobody answered or it is not finite."""
        server, moments = self._state.server, self._state.moments
        for clients, reply in self._noted:
            server = self.method.absorb(server, clients, reply)
        if self._mean is not None:
            server, moments = self.optimizer.step(server, self.method.aggregate(server, self._mean), moments)
        if not self._answered or not all(bool(t.isfinite().all()) for t in leaves(server)):
            return None
        return ServerStep(server, moments, averaged(self._state.average, server, self.optimizer.config.server_average))

    def record(self, state: State, served: PerClient, seconds: float, validated: PerClient | None = None) -> None:
        """Write the round, which is complete, into the state's history; validated: scores on validation data, where compared."""
        assert self.losses is not None, "nobody answered"
        answered = self.answered
        columns: dict[str, Any] = {}
        for name, value in self.method.diagnose(self.reported(answered), self.share[answered], answered).items():
            columns[name] = value.cpu().float()
            if value.ndim:
                columns[name] = torch.full((len(self.share), *value.shape[1:]), torch.nan)
                columns[name][answered] = value.cpu().float()
        state.history.append(
            round=state.round,
            served_accuracy=served["accuracy"],
            served_loss=served["loss"],
            adapted_accuracy=self.adapted["accuracy"],
            adapted_loss=self.adapted["loss"],
            choice=served["choice"],
            **{name: column for name, column in served.columns.items() if name in ("single_accuracy", "mixture")},
            **({} if validated is None else {f"validation_{name}": validated[name] for name in ("accuracy", "loss")}),
            losses=self.losses,
            seconds=seconds,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            left_out=state.left_out,
            **columns,
        )
        state.left_out = 0


def usable(outcome: Outcome) -> tuple[Tensor, Outcome]:
    """Positions (in the stack) of the clients that can be used, and the outcome for them alone.

    A model whose loss or update is not finite is left out for that client only: its loss becomes +inf and its update 0, and the
    other models of the client count as before. A client with no model left, or whose own state is not finite, is out.
    """
    reply = outcome.reply
    pairs = reply.losses.isfinite()  # [C, K]
    for t in leaves(reply.update):
        pairs = pairs & t.reshape(*t.shape[:2], -1).isfinite().all(2)  # [C, 1] where all models take from the same
    ok = pairs.any(1)
    if leaves(outcome.own):  # a wrapped method may have an own state of empty branches
        ok = ok & finite(outcome.own)
    at = ok.nonzero()[:, 0]
    if not bool(pairs.all()):
        losses = reply.losses.masked_fill(~pairs, torch.inf)
        reply = replace(reply, update=tree_map(partial(_zeroed, pairs=pairs), reply.update), losses=losses)
        outcome = replace(outcome, reply=reply)
    if len(at) < len(ok):
        reply = replace(reply, update=take(reply.update, at), losses=reply.losses[at], samples=reply.samples[at])
        outcome = Outcome(reply, take(outcome.own, at), take(outcome.adapted, at))
    return at.cpu(), outcome


def _zeroed(t: Tensor, pairs: Tensor) -> Tensor:
    """``t[C, K or 1, …]`` with 0 for the pairs (client, model) that are not to be used."""
    keep = pairs if t.shape[1] == pairs.shape[1] else pairs.any(1, keepdim=True)
    return torch.where(keep.reshape(*keep.shape, *[1] * (t.ndim - 2)), t, torch.zeros_like(t))
