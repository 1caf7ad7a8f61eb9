"""What is known of each client in a round, and how clients are listed in a line."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedfew.stack import is_everyone
from fedfew.training.scoring import ServedScores


class PerClient:
    """What is known of each of M clients by name (choice, score, loss, …), NaN where there is nothing yet."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.columns: dict[str, Tensor] = {}

    def put(self, clients: Tensor, scores: ServedScores) -> None:
        """Write down the scores of the clients at these positions."""
        self.put_values(clients, {name: value for name, value in vars(scores).items() if value is not None})

    def put_values(self, clients: Tensor, values: Mapping[str, Tensor]) -> None:
        everyone = is_everyone(clients, self.clients)
        for name, value in values.items():
            if everyone:
                self.columns[name] = value
                continue
            empty = torch.nan if value.is_floating_point() else -1
            self.columns.setdefault(name, torch.full((self.clients, *value.shape[1:]), empty, dtype=value.dtype))[clients] = value

    def merge(self, other: PerClient) -> None:
        """Take in the scores of other clients."""
        if other.columns:
            theirs = (other.columns["choice"] >= 0).nonzero()[:, 0]
            self.put_values(theirs, {name: column[theirs] for name, column in other.columns.items()})

    def assign(self, assigned: Tensor | None) -> None:
        """Where the server decides which model each client uses ``[M]``, that is the choice of those that were scored."""
        if assigned is not None and "choice" in self.columns:
            scored = self.columns["choice"] >= 0
            self.columns["choice"] = torch.where(scored, assigned.cpu(), -1)

    @property
    def chosen(self) -> tuple[Tensor, Tensor | None]:
        """Which model each client uses, and the weights of its mixture, where one is served."""
        return self.columns["choice"], self.columns.get("mixture")

    def __getitem__(self, name: str) -> Tensor:
        """A column; all values are missing (a choice is −1) if no client has been scored, or none reports it."""
        empty = -1 if name == "choice" else torch.nan
        return self.columns[name] if name in self.columns else torch.full((self.clients,), empty)


def some(clients: list[int]) -> str:
    """The first ten numbers of clients, for a line."""
    return ", ".join(map(str, clients[:10])) + (", …" if len(clients) > 10 else "")
