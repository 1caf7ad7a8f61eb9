"""The row of the history that a scored round becomes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedfew.stack import is_everyone, leaves
from fedfew.tasks import recorded_task
from fedfew.training import own_metrics, unseen
from fedfew.training.aggregation import Aggregation
from fedfew.training.checkpoint import State
from fedfew.training.per_client import PerClient
from fedfew.training.privacy import epsilon


def record(aggregation: Aggregation, state: State, served: PerClient, seconds: float, validated: PerClient | None = None) -> None:
    """Write the round, which is complete, into the state's history; validated: scores on validation data, where compared."""
    replies, config = aggregation.replies, aggregation.optimizer.config
    losses = replies.losses
    if losses is None:
        assert aggregation.nobody_drawn, "no client answered"
        losses = torch.full((len(aggregation.share), len(leaves(state.server)[0])), torch.nan)
    columns = _diagnosed(aggregation, losses.shape[1])
    if aggregation.private:
        columns["epsilon"] = epsilon(config, state.round)
    if unseen.share(config, aggregation.method):
        columns["confirmed"] = state.confirmed
    called = recorded_task(state.settings).column
    single = {f"single_{called}": served["single_score"]} if "single_score" in served.columns else {}
    row = dict[str, Any](
        round=state.round,
        **{f"served_{called}": served["score"]},
        served_loss=served["loss"],
        **{f"adapted_{called}": replies.adapted["score"]},
        adapted_loss=replies.adapted["loss"],
        choice=served["choice"],
        **single,
        **({"mixture": served["mixture"]} if "mixture" in served.columns else {}),
        **{name: column for name, column in served.columns.items() if name.startswith(own_metrics.PREFIX)},
        **({} if validated is None else {f"validation_{called}": validated["score"], "validation_loss": validated["loss"]}),
        losses=losses,
        seconds=seconds,
        bytes_up=replies.bytes_up,
        bytes_down=replies.bytes_down,
        left_out=state.left_out,
        **columns,
    )
    state.history.append(**{name: value.numpy() if isinstance(value, Tensor) else value for name, value in row.items()})
    state.left_out = 0


def _diagnosed(aggregation: Aggregation, models: int) -> dict[str, Any]:
    """What the method records of the round, NaN for clients without a reply."""
    method, share, answered = aggregation.method, aggregation.share, aggregation.replies.answered
    if aggregation.nobody_drawn:  # any client's, for the names
        found = method.diagnose(torch.zeros(1, models), torch.zeros(1))
    else:
        log_weights, log_alpha, factors = aggregation.log_weights()
        found = method.diagnose(log_weights, log_alpha)
        if "alpha" in found:
            found["alpha"] = _alpha_used(aggregation, found["alpha"], log_alpha, factors)
    columns = dict[str, Any]()
    everyone = is_everyone(answered, len(share))
    for name, value in found.items():
        if value.ndim == 0 or everyone:
            columns[name] = torch.tensor(torch.nan) if aggregation.nobody_drawn else value.cpu().float()
            continue
        columns[name] = torch.full((len(share), *value.shape[1:]), torch.nan)
        if not aggregation.nobody_drawn:
            columns[name].index_copy_(0, answered, value.cpu().float())
    return columns


def _alpha_used(aggregation: Aggregation, alpha: Tensor, log_alpha: Tensor, factors: Tensor) -> Tensor:
    """α after the cap; with differential privacy all clients count alike."""
    if aggregation.private:
        return torch.full_like(alpha, 1 / len(alpha))
    return (log_alpha + factors).softmax(0) if bool(factors.any()) else alpha
