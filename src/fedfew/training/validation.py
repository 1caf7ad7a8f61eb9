"""Which scored round is the best on validation data, and when to stop because none has been better for long."""

from __future__ import annotations

import numpy as np

from fedfew.config import TrainConfig
from fedfew.federation import Federation
from fedfew.training.history import History
from fedfew.util.spelling import counted


def check(config: TrainConfig, federation: Federation) -> None:
    """Refuse settings that compare rounds on validation data where there are none."""
    if config.validates and federation.val is None:
        name, value = ("early_stopping", config.early_stopping) if config.early_stopping else ("keep", config.keep)
        raise ValueError(
            f"{name} is {value!r}, but the federation has no validation samples: give val_share=0.2 to fedfew.data.load "
            "(--val-share 0.2)"
        )


def best_row(history: History, config: TrainConfig) -> int:
    """The position of the best scored round in the history, the earliest of several equal ones."""
    values = (history["validation_loss"] if config.best_by == "loss" else history.scores("validation")).astype(float)
    means = np.array([row[np.isfinite(row)].mean() if np.isfinite(row).any() else np.nan for row in values])
    return int(np.nanargmin(means if config.best_by == "loss" else -means)) if np.isfinite(means).any() else len(means) - 1


def reason_to_stop(history: History, config: TrainConfig) -> str | None:
    """Why training ends here; None: it continues."""
    if not config.early_stopping or not len(history):
        return None
    best = best_row(history, config)
    waited = len(history) - 1 - best
    if waited < config.early_stopping:
        return None
    return (
        f"stopped early after round {int(history.last('round'))}: the validation {config.best_by} was best in round "
        f"{int(history['round'][best])}, {counted(waited, 'scored round')} ago (early_stopping is {config.early_stopping})"
    )
