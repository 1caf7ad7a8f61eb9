"""What a client uses: one model or a weighted mixture of several, with the client's label prior added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedfew.tasks import CLASSIFICATION, TASKS


class ServedModel(nn.Module):
    """One model with a label prior: its logits + log prior. Several: what their weighted mixture gives.

    That is log-probabilities of classes, mean outputs for a regression, and log-odds of mean probabilities for several labels.
    weights: of the models, one number each, adding up to one; log_prior: ``[classes]``, or None for none.
    """

    log_weights: Tensor
    log_prior: Tensor | None

    def __init__(
        self,
        models: Sequence[nn.Module],
        weights: Tensor | None = None,
        log_prior: Tensor | None = None,
        task: str = CLASSIFICATION.name,
    ) -> None:
        super().__init__()
        self.task = task
        self.models = nn.ModuleList(models)
        weights = torch.full((len(models),), 1 / len(models)) if weights is None else torch.as_tensor(weights).float()
        self.register_buffer("log_weights", weights.log())
        self.register_buffer("log_prior", None if log_prior is None else torch.as_tensor(log_prior).float())

    def forward(self, x: Tensor) -> Tensor:
        logits = [self._shifted(model(x)) for model in self.models]
        if len(logits) == 1:
            return logits[0]
        each = torch.stack(logits)
        return TASKS[self.task].mixed(each, self.log_weights.view(-1, *[1] * (each.ndim - 1)))

    def _shifted(self, logits: Tensor) -> Tensor:
        return logits if self.log_prior is None else logits + self.log_prior


def with_prior(module: nn.Module, log_prior: Tensor | None) -> nn.Module:
    """The module with this added to its logits; itself without a prior."""
    return module if log_prior is None else ServedModel([module], log_prior=log_prior).eval()
