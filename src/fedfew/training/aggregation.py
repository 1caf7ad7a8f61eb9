"""The server's half of a round: replies taken in as they come, and what is written down of them.

The simulator and a real server both go through here, so that a round means the same wherever its clients are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedfew.methods import Method, confirmation
from fedfew.methods.base import LOSS_BOUND, Reply
from fedfew.stack import Tree, WeightedMean, all_finite, branch, leaves, tensor
from fedfew.tasks import recorded_task
from fedfew.training import own_metrics, products, restart, round_events, unseen
from fedfew.training.checkpoint import State
from fedfew.training.client_weights import bounded, caps, log_factors, median_of
from fedfew.training.distributed import Group
from fedfew.training.per_client import PerClient
from fedfew.training.privacy import Noise, PrivateMean, epsilon
from fedfew.training.products import Products
from fedfew.training.round_mean import RoundMean
from fedfew.training.server_optimizer import ServerOptimizer, averaged
from fedfew.training.server_step import ServerStep


class Aggregation:
    """A round as the server sees it: :meth:`add` what clients sent, a chunk at a time, then ask for the :meth:`result`.

    share: n_i / Σ_j n_j over the clients that the round was begun with, 0 for all others, [M].
    """

    def __init__(
        self, method: Method, state: State, share: Tensor, optimizer: ServerOptimizer, noise: Noise | None = None
    ) -> None:
        """noise: with differential privacy, where the random numbers come from."""
        self.method = method
        self.optimizer = optimizer
        self.share = share
        self.adapted = PerClient(len(share))
        self.losses: Tensor | None = None  # [M, K], NaN: no reply
        self.unseen: Tensor | None = None  # [M, K], on samples never trained on, NaN: not known; None: of nobody
        self.samples = torch.zeros(len(share), dtype=torch.int64)
        self.bytes_up = 0
        self.bytes_down = 0
        self._state = state
        self._median = median = state.median_loss  # of the round before: the state's changes when this one is complete
        self._part = state.confirmed  # likewise
        self._bound = method.loss_bound(median) if median is not None and median > 0 else None
        self._mean: RoundMean | PrivateMean | None = None
        self._masked_mean: WeightedMean | None = None
        self._products = Products(state.server) if products.wanted(optimizer.config) and method.aggregates else None
        self._answered: list[Tensor] = []
        self._noise = noise
        if noise is not None:
            self._mean = self._round_mean(0)  # a round without clients gets noise, too
        self._restarted: list[tuple[int, int]] = []
        self._noted: list[tuple[Tensor, Reply]] = []  # for a method that absorbs single replies
        self._weighed: list[Tensor] = []  # log ω of the clients of each chunk
        self._known: tuple[Tensor, Tensor] | None = None  # see _replies

    def add(self, clients: Tensor, reply: Reply) -> None:
        """Take in the replies of the clients at these positions; they must be :func:`usable`."""
        if self.losses is None:
            self.losses = torch.full((len(self.share), reply.losses.shape[1]), torch.nan)
        losses = reply.losses.cpu()
        unusable = losses == torch.inf
        self.losses[clients] = losses.float().masked_fill(unusable, torch.nan)
        self.samples[clients] = reply.samples.cpu()
        if reply.unseen is not None:
            self.unseen = torch.full_like(self.losses, torch.nan) if self.unseen is None else self.unseen
            self.unseen[clients] = reply.unseen.cpu().float()
        self.bytes_up += reply.bytes_each * len(clients)
        if reply.update:
            self._mean = self._mean or self._round_mean(reply.losses.shape[1])
            of = replace(reply, losses=self.counted(reply.losses)), self.share[clients], clients
            log_weights, log_whole = self._log_weights(*of)
            update = reply.update if self._products is None else self._products.of_updates(reply.update)
            self._mean.add(clients, log_weights, log_whole, update)
            self._weighed.append(log_weights)
        if self.method.absorbs:
            self._noted.append((clients, reply))
        self._answered.append(clients)
        self._known = None

    def add_mean(self, mean: WeightedMean) -> None:
        """The updates' weighted mean itself, where they were added up elsewhere (under masks, which hide single ones)."""
        self._masked_mean = mean

    def counted(self, losses: Tensor) -> Tensor:
        """Reported losses ``[C, K]`` as they count for weights."""
        return confirmation.counted(bounded(losses, self._bound), self._part)

    def log_factors(self, log_alpha: Tensor, clients: Tensor) -> Tensor:
        """What is added to the log of these clients' weights [C] so that none is above its cap; they are all of the round."""
        most = self._caps
        return torch.zeros(len(clients)) if most is None else log_factors(log_alpha, most[clients])

    def _round_mean(self, models: int) -> RoundMean | PrivateMean:
        if self._noise is not None:
            return PrivateMean(self.optimizer.config, self._state.server, len(self.share), self._noise)
        return RoundMean(models, self._caps, self.optimizer.config, self.share)

    @cached_property
    def _caps(self) -> Tensor | None:
        """The largest share of the weights per client; None: no limit."""
        return None if self.method.share_cap >= 1 else caps(self.method.share_cap, self.share)

    def join(self, group: Group, own: list[tuple[Tensor, Tree]], device: torch.device) -> list[tuple[Tensor, Tree]]:
        """Add what clients of other processes sent, so that all processes hold the same; returns all private states."""
        self._weighed, self._known = [], None
        parts = self.losses, self.unseen, self.samples, self.adapted, self.bytes_up, self.bytes_down, self._answered
        gathered = group.everyones(parts)
        mine: Tree = {"mean": {} if self._mean is None else self._mean.parts()}
        for i, (clients, state) in enumerate(own):
            mine[f"own{i}"] = {"clients": clients, "own": state}
        for i, (clients, reply) in enumerate(self._noted):
            mine[f"noted{i}"] = {"clients": clients, "update": reply.update, "losses": reply.losses, "samples": reply.samples}
        self.losses, self.unseen, self.adapted, self._answered = None, None, PerClient(len(self.share)), []
        self.bytes_up = self.bytes_down = 0
        for losses, on_unseen, samples, adapted, bytes_up, bytes_down, answered in gathered:
            self.samples = torch.maximum(self.samples, samples)
            self.losses, self.unseen = _merged(self.losses, losses), _merged(self.unseen, on_unseen)
            self.adapted.merge(adapted)
            self.bytes_up += bytes_up
            self.bytes_down += bytes_down
            self._answered += answered
        self._mean, self._noted = None if self._noise is None else self._round_mean(0), []
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
                    self._mean = self._mean or self._round_mean(int(tensor(branch(part, "rows"), "models")))
                    self._mean.merge(part)
        return everyones

    @property
    def answered(self) -> Tensor:
        """Positions of the clients whose replies were taken in."""
        return self._replies[0]

    @property
    def _replies(self) -> tuple[Tensor, Tensor]:
        """The clients that answered, and what they :meth:`reported`; empty if none answered."""
        if self._known is None:
            if not self._answered:
                return torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0)
            answered = torch.cat(self._answered)
            self._known = answered, self.reported(answered)
        return self._known

    @property
    def nobody_drawn(self) -> bool:
        """With differential privacy it may happen that no client is drawn for a round."""
        return self._noise is not None and not bool((self.share > 0).any())

    @property
    def loss(self) -> float:
        """Mean over clients of the least loss they reported."""
        if self.nobody_drawn:
            return math.nan
        assert self.losses is not None, "no client answered"
        return float(self._replies[1].amin(1).mean())

    def reported(self, clients: Tensor) -> Tensor:
        """The losses [C, K] of clients that answered, +inf for a model that a client cannot use."""
        assert self.losses is not None, "no client answered"
        return self.losses[clients].nan_to_num(nan=torch.inf)

    def result(self) -> ServerStep | None:
        """The server's new state; None if no client answered or the state is not finite."""
        server, moments = self._state.server, self._state.moments
        for clients, reply in self._noted:
            server = self.method.absorb(server, clients, reply)
        mean = self._mean.combine() if self._mean else self._masked_mean
        if mean is not None:
            before = server if self._products is None else self._products.of(server)
            server, moments = self.optimizer.step(before, self.method.aggregate(before, mean), moments)
        if (not self._answered and not self.nobody_drawn) or not all_finite(server):
            return None
        if self._products is not None and mean is not None:
            answered = sum(len(one) for one in self._answered)
            server = self._products.factored(server, self._state.server, terms=1 + answered)
        average = self._averaged(server)
        median = median_of(self._replies[1]) if self._answered else self._state.median_loss
        return self._with_restarts(ServerStep(server, moments, average, median, self._confirmed(), self._state.unused))

    def _confirmed(self) -> float:
        """Which part of differences between losses counts in the next round."""
        if self.unseen is None or not self._answered:
            return self._part
        answered, losses = self._replies
        return self.method.confirmed(losses, self.unseen[answered], self.share[answered])

    def _averaged(self, server: Tree) -> Tree:
        """The average of the server's models over rounds, where that is what is served."""
        weight, before = self.optimizer.config.server_average, self._state.average
        if before:
            before = self.method.rearranged(before, self._state.server, server)
        if self._products is None or not before:
            return averaged(before, server, weight)
        return self._products.factored(averaged(self._products.of(before), self._products.of(server), weight), before, terms=2)

    def _with_restarts(self, step: ServerStep) -> ServerStep:
        """The step, with models restarted that no client has used for restart_unused rounds."""
        after = self.optimizer.config.restart_unused
        if not after or not self._answered:
            return step
        losses = self._replies[1]
        if not restart.applies(self.method, step.server, losses.shape[1]):
            return step
        step = replace(step, unused=restart.unused_for(self._state.unused, self._weights()[0]))
        step, self._restarted = restart.restarted(step, losses, after)
        return step

    def events(self, round: int) -> list[str]:
        """A line for every model that some clients could not use or that started again; and, once in a run for each, for every
        client whose losses are far beyond the others', whose weight is capped, or who has most of a model."""
        if self.nobody_drawn:
            return [f"round {round}: no client was drawn, the models move by noise alone"]
        clients, reported = self._replies
        unusable = round_events.unusable(clients, reported, round)
        if self._noise is not None or (self._mean is None and self._masked_mean is None):
            return unusable
        restarts = round_events.restarts(self._restarted, self.optimizer.config.restart_unused, round)
        lines = [
            *round_events.bounded(clients, reported, self._suspicious(reported), self._bound, round),
            *round_events.of_weights(clients, *self._weights(), self.method.share_cap, round),
            *round_events.not_confirmed(self._part, round),
        ]
        return unusable + restarts + round_events.once(lines, self._state.events)

    def _suspicious(self, reported: Tensor) -> list[int]:
        """Rows of clients whose least loss is beyond what honest clients have, and changes their weight. A bound by weight alone
        needs no line."""
        if not self._median:
            return []
        large = reported.amin(1) > LOSS_BOUND * self._median
        if not bool(large.any()):
            return []
        without_bound = confirmation.counted(reported, self._part)
        (would, _), (has, _) = (self._log_weights_of(losses) for losses in (without_bound, self.counted(reported)))
        return (large & ~torch.isclose(would, has).all(1)).nonzero()[:, 0].tolist()

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """log ω ``[C, K]`` and log α ``[C]`` of the clients that answered, before the cap, and the cap's log factors ``[C]``."""
        if self._weighed and isinstance(self._mean, RoundMean):
            return torch.cat(self._weighed), self._mean.log_alpha, self._mean.log_factors
        log_weights, log_alpha = self._log_weights_of(self.counted(self._replies[1]))  # updates came added up, or with noise
        return log_weights, log_alpha, self.log_factors(log_alpha, self.answered)

    def _log_weights_of(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """log ω ``[C, K]`` and log α ``[C]`` that the clients who answered would have with these losses."""
        at = self.answered
        log_weights, log_whole = self._log_weights(Reply({}, losses, self.samples[at]), self.share[at], at)
        return log_weights, log_weights.logsumexp(1) if log_whole is None else log_whole

    def _log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> tuple[Tensor, Tensor | None]:
        """The method's log ω ``[C, K]``, with none for what a client cannot use, and the log of the whole ``[C]``, in float64."""
        log_weights = self.method.log_weights(reply, share, clients).to("cpu", torch.float64)
        whole = self.method.log_whole(reply, share, clients)
        unusable = reply.losses.cpu() == torch.inf
        return log_weights.masked_fill(unusable, -torch.inf), None if whole is None else whole.to("cpu", torch.float64)

    def _diagnosed(self, models: int) -> dict[str, Any]:
        """What the method records of the round, NaN for clients without a reply."""
        answered, columns = self.answered, dict[str, Any]()
        if self.nobody_drawn:  # any client's, for the names
            found = self.method.diagnose(torch.zeros(1, models), torch.ones(1), torch.tensor([0]))
        else:
            found = self.method.diagnose(self.counted(self._replies[1]), self.share[answered], answered)
        if "alpha" in found:
            found["alpha"] = self._alpha_used(found["alpha"])
        for name, value in found.items():
            empty = torch.full((len(self.share), *value.shape[1:]) if value.ndim else (), torch.nan)
            columns[name] = empty
            if not self.nobody_drawn:
                columns[name] = value.cpu().float() if value.ndim == 0 else empty.index_copy(0, answered, value.cpu().float())
        return columns

    def _alpha_used(self, alpha: Tensor) -> Tensor:
        """α after the cap; with differential privacy all clients count alike."""
        if self._noise is not None:
            return torch.full_like(alpha, 1 / len(alpha))
        _, log_alpha, factors = self._weights()
        return (log_alpha + factors).softmax(0) if bool(factors.any()) else alpha

    def record(self, state: State, served: PerClient, seconds: float, validated: PerClient | None = None) -> None:
        """Write the round, which is complete, into the state's history; validated: scores on validation data, where compared."""
        if self.losses is None:
            assert self.nobody_drawn, "no client answered"
            self.losses = torch.full((len(self.share), len(leaves(state.server)[0])), torch.nan)
        columns = self._diagnosed(self.losses.shape[1])
        if self._noise is not None:
            columns["epsilon"] = epsilon(self.optimizer.config, state.round)
        if unseen.share(self.optimizer.config, self.method):
            columns["confirmed"] = state.confirmed
        called = recorded_task(state.settings).column
        single = {f"single_{called}": served["single_score"]} if "single_score" in served.columns else {}
        state.history.append(
            round=state.round,
            **{f"served_{called}": served["score"]},
            served_loss=served["loss"],
            **{f"adapted_{called}": self.adapted["score"]},
            adapted_loss=self.adapted["loss"],
            choice=served["choice"],
            **single,
            **({"mixture": served["mixture"]} if "mixture" in served.columns else {}),
            **{name: column for name, column in served.columns.items() if name.startswith(own_metrics.PREFIX)},
            **({} if validated is None else {f"validation_{called}": validated["score"], "validation_loss": validated["loss"]}),
            losses=self.losses,
            seconds=seconds,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            left_out=state.left_out,
            **columns,
        )
        state.left_out = 0


def _merged(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
    """One number per client and model, NaN where neither has it."""
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return torch.where(theirs.isnan(), mine, theirs)
