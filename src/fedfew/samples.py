"""The samples of many clients in one tensor, and where those of each client begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fedfew.stack import is_everyone
from fedfew.util.spelling import counted

Pixels = Literal["symmetric", "unit"]


@dataclass(frozen=True, repr=False)
class Samples:
    """One split (training or test) of a stack of clients: client i owns rows ``start[i] : start[i] + count[i]``."""

    x: Tensor
    y: Tensor
    start: Tensor
    count: Tensor
    longest: int  # max(count), known without asking the device
    pixels: Pixels = "symmetric"  # what bytes become on their way into a model, see as_input
    log_prior: Tensor | None = None  # [C, classes]: added to the logits of each client's samples
    class_weights: Tensor | None = None  # [C, classes]: what a sample of a class weighs in each client's training loss
    row: Tensor | None = None  # where in x each sample is, if several federations share one tensor of features; None: as in y
    unseen: Tensor | None = None  # [C]: so many samples, which follow the client's own, are never trained on

    @classmethod
    def concatenate(cls, parts: Sequence[tuple[Tensor, Tensor]]) -> Samples:
        count = torch.tensor([len(y) for _, y in parts])
        return cls(
            x=torch.cat([x for x, _ in parts]),
            y=torch.cat([y for _, y in parts]),
            start=count.cumsum(0) - count,
            count=count,
            longest=int(count.max()),
        )

    def __repr__(self) -> str:
        """A summary without any sample."""
        whose = counted(len(self.count), "client")
        return f"<Samples: {int(self.count.sum()):,} of {whose}, {list(self.x.shape[1:])} of {self.x.dtype}>"

    def take(self, clients: Tensor) -> Samples:
        """The same rows seen by a chosen stack of clients (nothing is copied)."""
        if is_everyone(clients, self.count.shape[0]):
            return self
        at = clients.to(self.count.device)
        count = self.count[at]
        optional = {name: getattr(self, name) for name in ("log_prior", "class_weights", "unseen")}
        own: dict[str, Any] = {name: None if t is None else t[at] for name, t in optional.items()}
        return replace(self, start=self.start[at], count=count, longest=int(count.max()), **own)

    @cached_property
    def largest_first(self) -> tuple[Tensor, list[int]]:
        """Positions of the clients, largest first, and their sizes in that order."""
        rank = self.count.argsort(descending=True, stable=True)
        return rank, self.count[rank].tolist()

    @cached_property
    def sizes(self) -> Tensor:
        """``count`` on the CPU: a GPU that is asked for it is waited for."""
        return self.count.cpu()

    @cached_property
    def every_row(self) -> tuple[Tensor, Tensor]:
        """All rows of these clients, and whose (as a position in the stack) each is."""
        owner = torch.repeat_interleave(torch.arange(len(self.count), device=self.count.device), self.count)
        first = self.count.cumsum(0) - self.count
        return self.start[owner] + torch.arange(len(owner), device=owner.device) - first[owner], owner

    @property
    def used(self) -> Tensor:
        """Which of the stored rows are these clients' own; on the CPU."""
        start, end = self.start.cpu(), (self.start + self.count).cpu()
        inside = torch.zeros(len(self.y) + 1, dtype=torch.int64)  # +1 where a client's rows begin, −1 where they end
        inside.index_add_(0, start, torch.ones_like(start)).index_add_(0, end, -torch.ones_like(end))
        return inside.cumsum(0)[:-1] > 0

    @cached_property
    def not_seen(self) -> Samples | None:
        """The samples of the same clients that are never trained on; None where there are none. Always the same object, by which
        what was made for scoring them is found again."""
        if self.unseen is None:
            return None
        return replace(self, start=self.start + self.count, count=self.unseen, longest=int(self.unseen.max()), unseen=None)

    def to(self, device: torch.device | str, stream: bool = False) -> Samples:
        """On a device; with ``stream`` the features stay where they are and are moved batch by batch."""
        optional = {name: getattr(self, name) for name in ("log_prior", "class_weights", "row", "unseen")}
        moved: dict[str, Any] = {name: None if t is None else t.to(device) for name, t in optional.items()}
        return replace(
            self,
            x=self.x if stream else self.x.to(device),
            y=self.y.to(device),
            start=self.start.to(device),
            count=self.count.to(device),
            **moved,
        )

    def inputs(self, rows: Tensor) -> Tensor:
        """What a model sees of these rows, on the rows' device; the samples themselves may be in host memory."""
        at = self.rows_of_x(rows).flatten().to(self.x.device)
        chosen = self.x.index_select(0, at).reshape(rows.shape + self.x.shape[1:])
        return as_input(chosen.to(rows.device, non_blocking=True), self.pixels)

    def rows_of_x(self, rows: Tensor) -> Tensor:
        """Where the features of these rows are."""
        return rows if self.row is None else self.row[rows]

    def rows(self, client: int) -> Tensor:
        """The rows of one client."""
        start, count = int(self.start[client]), int(self.count[client])
        return torch.arange(start, start + count, device=self.y.device)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """(x, y) of one client, as stored."""
        rows = self.rows(client)
        return self.x[self.rows_of_x(rows).to(self.x.device)], self.y[rows]


def as_input(x: Tensor, pixels: Pixels = "symmetric") -> Tensor:
    """What a model sees of stored samples.

    Bytes are pixels and become (x/255 − 0.5)/0.5, or x/255 where ``pixels`` is "unit". Short integers are token ids stored
    compactly and become int64. All else stays as it is.
    """
    if x.dtype == torch.uint8:
        inputs = x.to(torch.float32)
        return inputs.div_(127.5).sub_(1.0) if pixels == "symmetric" else inputs.div_(255.0)
    return x.to(torch.int64) if x.dtype in (torch.int16, torch.int32) else x
