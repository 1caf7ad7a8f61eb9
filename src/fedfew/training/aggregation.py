"""The server's half of a round: replies are added as they come, and become the server's next state.

The simulator and a real server both go through here, so that a round means the same wherever its clients are.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fedfew.methods import Method
from fedfew.methods.base import Reply, returned
from fedfew.stack import Tree, all_finite, branch, tensor
from fedfew.training import products, restart, round_events
from fedfew.training.checkpoint import State
from fedfew.training.client_weights import median_of
from fedfew.training.distributed import Group
from fedfew.training.privacy import Noise, PrivateMean
from fedfew.training.products import Products
from fedfew.training.replies import Replies
from fedfew.training.round_mean import RoundMean
from fedfew.training.round_weights import RoundWeights
from fedfew.training.server_optimizer import ServerOptimizer, averaged
from fedfew.training.server_step import ServerStep, without_negative_statistics
from fedfew.weighted_mean import WeightedMean


class Aggregation:
    """A round as the server sees it: :meth:`add` what clients sent, a chunk at a time, then ask for the :meth:`result`.

    share: n_i / Σ_j n_j over the clients of the round, 0 for all others, [M].
    """

    def __init__(
        self, method: Method, state: State, share: Tensor, optimizer: ServerOptimizer, noise: Noise | None = None
    ) -> None:
        """noise: with differential privacy, where the random numbers come from."""
        self._not_fallen = method
        self.method = method = method.smoothed(optimizer.config.smoothing_of(state.round + 1))
        self.optimizer = optimizer
        self.share = share
        self.replies = Replies(len(share))
        self.weights = RoundWeights(method, state, share)
        self._state = state
        self._masked_mean: WeightedMean | None = None
        self._products = Products(state.server) if products.wanted(optimizer.config) and method.aggregates else None
        self._noise = noise
        self._mean = self._noise_alone()
        self._restarted: list[tuple[int, int]] = []
        self._absorbed: list[tuple[Tensor, Reply]] = []  # for a method that absorbs single replies
        self._weighed: list[Tensor] = []  # log ω of the clients of each chunk

    @property
    def private(self) -> bool:
        """With differential privacy?"""
        return self._noise is not None

    @property
    def nobody_drawn(self) -> bool:
        """With differential privacy it may happen that no client is drawn for a round."""
        return self.private and not bool((self.share > 0).any())

    # -- what clients sent ---------------------------------------------------------------------------------------------------

    def add(self, clients: Tensor, reply: Reply) -> None:
        """The replies of the clients at these positions; they must be :func:`usable`."""
        numbers = reply.with_numbers_on_cpu()
        self.replies.add(clients, numbers)
        if reply.update:
            self._mean = self._mean or self._round_mean(reply.losses.shape[1])
            log_weights, log_whole = self.weights.of(replace(numbers, losses=self.weights.counted(numbers.losses)), clients)
            update = reply.update if self._products is None else self._products.of_updates(reply.update)
            self._mean.add(clients, log_weights, log_whole, update)
            self._weighed.append(log_weights)
        if self.method.absorbs:
            self._absorbed.append((clients, reply))

    def add_mean(self, mean: WeightedMean) -> None:
        """The updates' weighted mean itself, where they were added up elsewhere (under masks, which hide single ones)."""
        self._masked_mean = mean

    def join(self, group: Group, own: list[tuple[Tensor, Tree]], device: torch.device) -> list[tuple[Tensor, Tree]]:
        """Add what clients of other processes sent, so that all processes hold the same; returns all private states."""
        gathered = group.everyones(self.replies)
        mine: Tree = {"mean": {} if self._mean is None else self._mean.parts()}
        for i, (clients, state) in enumerate(own):
            mine[f"own{i}"] = {"clients": clients, "own": state}
        for i, (clients, reply) in enumerate(self._absorbed):
            numbers: Tree = {"losses": reply.losses, "samples": reply.samples}
            mine[f"absorbed{i}"] = {"clients": clients, "update": reply.update, **numbers}
        self.replies, self._mean, self._absorbed, self._weighed = Replies(len(self.share)), self._noise_alone(), [], []
        for one in gathered:
            self.replies.merge(one)
        everyones: list[tuple[Tensor, Tree]] = []
        for theirs in group.everyones_trees(mine, device):
            for name in theirs:
                part = branch(theirs, name)
                if name.startswith("own"):
                    everyones.append((tensor(part, "clients").cpu(), branch(part, "own")))
                elif name.startswith("absorbed"):
                    reply = Reply(branch(part, "update"), tensor(part, "losses"), tensor(part, "samples"))
                    self._absorbed.append((tensor(part, "clients").cpu(), reply))
                elif part:
                    self._mean = self._mean or self._round_mean(int(tensor(branch(part, "rows"), "models")))
                    self._mean.merge(part)
        return everyones

    def _round_mean(self, models: int) -> RoundMean | PrivateMean:
        if self._noise is not None:
            return PrivateMean(self.optimizer.config, self._state.server, len(self.share), self._noise)
        return RoundMean(models, self.weights.caps, self.optimizer.config, self.share)

    def _noise_alone(self) -> RoundMean | PrivateMean | None:
        """What a round without clients has: with differential privacy it gets noise, too."""
        return self._round_mean(0) if self.private else None

    # -- what it amounts to --------------------------------------------------------------------------------------------------

    @property
    def loss(self) -> float:
        """Mean over clients of the least loss they reported."""
        if self.nobody_drawn:
            return math.nan
        return float(self.replies.least.mean())

    def result(self) -> ServerStep | None:
        """The server's new state; None if no client answered or the state is not finite."""
        server, moments = self._state.server, self._state.moments
        for clients, reply in self._absorbed:
            server = self.method.absorb(server, clients, reply)
        mean = self._mean.combine() if self._mean else self._masked_mean
        if mean is not None:
            before = server if self._products is None else self._products.of(server)
            after = returned(self.method, "aggregate", self.method.aggregate(before, mean), dict)
            server, moments = self._stepped(before, after, moments)
        answered = len(self.replies)
        if (not answered and not self.nobody_drawn) or not all_finite(server):
            return None
        if self._products is not None and mean is not None:
            server = self._products.factored(server, self._state.server, terms=1 + answered)
        server = without_negative_statistics(server, self.optimizer.is_buffer)
        average = self._averaged(server)
        median = median_of(self.replies.least) if answered else self._state.median_loss
        return self._with_restarts(ServerStep(server, moments, average, median, self._confirmed(), self._state.unused))

    def _stepped(self, before: Tree, proposed: Tree, moments: Tree) -> tuple[Tree, Tree]:
        """The step of the server's optimiser. A model that goes on from another one moves from there, with that one's moments."""
        if self.optimizer.idle or self.method.not_optimised:
            return proposed, moments
        old = self.method.rearranged(before, before, proposed)
        for name in ("first", "second"):
            if moments.get(name):
                moments = moments | {name: self.method.rearranged(branch(moments, name), before, proposed)}
        return self.optimizer.step(old, proposed, moments)

    def _confirmed(self) -> float:
        """By how much differences between losses are multiplied in the next round. It is asked of the method with its whole μ:
        which differences are too small to be checked does not change in the last quarter of the rounds."""
        unseen, answered = self.replies.unseen, self.replies.answered
        if unseen is None:
            return self.weights.confirmed
        spread = self.optimizer.config.smoothing_spread
        return self._not_fallen.confirmed(self.replies.reported, unseen[answered], self.share[answered], spread)

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
        if not after or not len(self.replies):
            return step
        losses = self.replies.reported
        if not restart.applies(self.method, step.server, losses.shape[1]):
            return step
        step = replace(step, unused=restart.unused_for(self._state.unused, self.log_weights()[0]))
        step, self._restarted = restart.restarted(step, losses, after)
        return step

    def log_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """log ω ``[C, K]`` and log α ``[C]`` of the clients that answered, before the cap, and the cap's log factors ``[C]``."""
        if self._weighed and isinstance(self._mean, RoundMean):
            return torch.cat(self._weighed), self._mean.log_alpha, self._mean.log_factors
        losses = self.weights.counted(self.replies.reported)  # updates came added up, or with noise
        log_weights, log_alpha = self.weights.of_losses(losses, self.replies)
        return log_weights, log_alpha, self.weights.log_factors(log_alpha, self.replies.answered)

    def events(self, round: int) -> list[str]:
        """A line for every model that some clients could not use or that started again; and, once in a run for each, for every
        client whose losses are far beyond the others', whose weight is capped, or who has most of a model."""
        if self.nobody_drawn:
            return [f"round {round}: no client was drawn, the models move by noise alone"]
        clients, reported = self.replies.answered, self.replies.reported
        unusable = round_events.unusable(clients, reported, round)
        if self.private or (self._mean is None and self._masked_mean is None):
            return unusable
        restarts = round_events.restarts(self._restarted, self.optimizer.config.restart_unused, round)
        data = self._state.data
        lines = [
            *round_events.bounded(clients, reported, self.weights.suspicious(self.replies), self.weights.bound, round, data),
            *round_events.of_weights(clients, *self.log_weights(), self.method.share_cap, round, data),
            *round_events.not_confirmed(self.weights.confirmed, round),
        ]
        return unusable + restarts + round_events.once(lines, self._state.events)

    def events_of_scores(self, round: int) -> list[str]:
        """Lines about the scores of this round, which the state's history has already."""
        history, before = self._state.history, self._state.events
        found = round_events.infinite(history, round, before)
        if self.private:  # noise may hide any difference between models
            return found
        return found + round_events.not_specialised(history, self._not_fallen, round, before)
