"""When training stops, and the models of which round are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfew.config.group import Group, train_setting
from fedfew.util.validated import ZERO_OR_MORE

Keep = Literal["last", "best"]
BestBy = Literal["loss", "accuracy"]


@dataclass(frozen=True)
class Stopping(Group):
    """When training stops, and the models of which round are kept; decided on validation data."""

    early_stopping: int = train_setting(
        0,
        "Stop after so many scored rounds without a better one on validation data; 0: never. Needs val-share.",
        allowed=ZERO_OR_MORE,
    )
    keep: Keep = train_setting(
        "last",
        "Models to use in the end: of the last round, or of the best scored round on validation data. best needs val-share.",
        allowed=Keep,
    )
    best_by: BestBy = train_setting(
        "loss",
        "What early-stopping and keep=best compare: the mean validation loss or accuracy (other tasks: score) over clients.",
        allowed=BestBy,
    )

    @property
    def validates(self) -> bool:
        """Are the models scored on validation data, too?"""
        return self.early_stopping > 0 or self.keep == "best"

    def without_effect(self) -> list[str]:
        found = super().without_effect()
        if self.changed("best_by") and not self.validates:
            found.append(f"best_by is {self.best_by}, but early_stopping is 0 and keep is last: it has no effect")
        return found
