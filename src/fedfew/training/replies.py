"""What clients reported in a round: losses, sample counts and scores, without their updates."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfew.methods.base import Reply
from fedfew.stack import is_everyone
from fedfew.training.per_client import PerClient


class Replies:
    """The numbers that M clients reported; :meth:`add` them a chunk of clients at a time."""

    def __init__(self, clients: int) -> None:
        self.losses: Tensor | None = None  # [M, K], NaN: no reply
        self.unseen: Tensor | None = None  # [M, K], on samples never trained on, NaN: not known; None: of no client
        self.samples = torch.zeros(clients, dtype=torch.int64)
        self.adapted = PerClient(clients)  # scores of clients' models after local training
        self.bytes_up = 0
        self.bytes_down = 0
        self._answered: list[Tensor] = []
        self._known: tuple[Tensor, Tensor, Tensor] | None = None  # answered, reported and least

    def __len__(self) -> int:
        """The number of clients that answered."""
        return sum(len(clients) for clients in self._answered)

    def add(self, clients: Tensor, reply: Reply) -> None:
        """The replies of the clients at these positions."""
        losses = reply.losses.cpu()
        losses, samples = losses.float().masked_fill(losses == torch.inf, torch.nan), reply.samples.cpu()
        if is_everyone(clients, len(self.samples)):
            self.losses, self.samples = losses, samples
        else:
            if self.losses is None:
                self.losses = torch.full((len(self.samples), losses.shape[1]), torch.nan)
            self.losses[clients], self.samples[clients] = losses, samples
        if reply.unseen is not None:
            self.unseen = torch.full_like(self.losses, torch.nan) if self.unseen is None else self.unseen
            self.unseen[clients] = reply.unseen.cpu().float()
        self.bytes_up += reply.bytes_each * len(clients)
        self._answered.append(clients)
        self._known = None

    def merge(self, other: Replies) -> None:
        """Add what other clients reported to another process."""
        self.losses, self.unseen = _merged(self.losses, other.losses), _merged(self.unseen, other.unseen)
        self.samples = torch.maximum(self.samples, other.samples)
        self.adapted.merge(other.adapted)
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down
        self._answered += other._answered
        self._known = None

    @property
    def answered(self) -> Tensor:
        """Positions of the clients that answered, in the order in which they did."""
        return self._numbers[0]

    @property
    def reported(self) -> Tensor:
        """The losses [C, K] of the clients that answered, +inf for a model that a client cannot use."""
        return self._numbers[1]

    @property
    def least(self) -> Tensor:
        """The least of them per client [C]."""
        return self._numbers[2]

    @property
    def _numbers(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._known is None:
            if self.losses is None:
                return torch.zeros(0, dtype=torch.int64), torch.zeros(0, 0), torch.zeros(0)
            answered = torch.cat(self._answered) if len(self._answered) > 1 else self._answered[0]
            reported = self.losses[answered].nan_to_num(nan=torch.inf)
            self._known = answered, reported, reported.amin(1)
        return self._known


def _merged(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
    """One number per client and model, NaN where neither has it."""
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return torch.where(theirs.isnan(), mine, theirs)
