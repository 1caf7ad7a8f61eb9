"""The weights of a round's clients: a method's, from losses that are bounded, with no client above its cap."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fedfew.methods import Method, confirmation
from fedfew.methods.base import LOSS_BOUND, Reply, returned
from fedfew.training.checkpoint import State
from fedfew.training.client_weights import bounded, caps, log_factors
from fedfew.training.replies import Replies


class RoundWeights:
    """Weights by the state before the round; share: n_i / Σ_j n_j over the clients of the round, [M]."""

    def __init__(self, method: Method, state: State, share: Tensor) -> None:
        self.method = method
        self.share = share
        self.median = median = state.median_loss  # kept here, since the state changes when the round is complete
        self.confirmed = state.confirmed  # likewise
        self.bound = method.loss_bound(median) if median is not None and median > 0 else None

    def counted(self, losses: Tensor) -> Tensor:
        """Reported losses ``[C, K]`` as they count for weights."""
        return confirmation.counted(bounded(losses, self.bound), self.confirmed)

    def of(self, reply: Reply, clients: Tensor) -> tuple[Tensor, Tensor | None]:
        """The method's log ω ``[C, K]``, with none for what a client cannot use, and the log of the whole ``[C]``, in float64."""
        share = self.share[clients]
        log_weights = returned(self.method, "log_weights", self.method.log_weights(reply, share, clients), Tensor, "a tensor")
        log_weights = log_weights.to("cpu", torch.float64)
        given = None if log_weights.shape == reply.losses.shape else f"shape {list(log_weights.shape)}"
        if given is None:
            log_weights = log_weights.masked_fill(reply.losses.cpu() == torch.inf, -torch.inf)
            given = "NaN" if bool(log_weights.isnan().any()) else None
        if given is not None:  # of a method of the user's own
            shape = f"[clients, models], here {list(reply.losses.shape)}"
            raise ValueError(f"{self.method.name}: log_weights must return numbers of shape {shape}, but returned {given}")
        whole = self.method.log_whole(reply, share, clients)
        return log_weights, None if whole is None else whole.to("cpu", torch.float64)

    def of_losses(self, losses: Tensor, replies: Replies) -> tuple[Tensor, Tensor]:
        """log ω ``[C, K]`` and log α ``[C]`` that the clients who answered would have with these losses."""
        at = replies.answered
        log_weights, log_whole = self.of(Reply({}, losses, replies.samples[at]), at)
        return log_weights, log_weights.logsumexp(1) if log_whole is None else log_whole

    @cached_property
    def caps(self) -> Tensor | None:
        """The largest share of the weights per client [M]; None: no limit."""
        return None if self.method.share_cap >= 1 else caps(self.method.share_cap, self.share)

    def log_factors(self, log_alpha: Tensor, clients: Tensor) -> Tensor:
        """What is added to the log of these clients' weights [C] so that none is above its cap; they are all of the round."""
        most = self.caps
        return torch.zeros(len(clients)) if most is None else log_factors(log_alpha, most[clients])

    def suspicious(self, replies: Replies) -> list[int]:
        """Rows of clients whose least loss is beyond what honest clients have, and changes their weight. A bound by weight alone
        needs no line."""
        reported = replies.reported
        if not self.median:
            return []
        large = replies.least > LOSS_BOUND * self.median
        if not bool(large.any()):
            return []
        without_bound = confirmation.counted(reported, self.confirmed)
        (would, _), (has, _) = (self.of_losses(losses, replies) for losses in (without_bound, self.counted(reported)))
        return (large & ~torch.isclose(would, has).all(1)).nonzero()[:, 0].tolist()
