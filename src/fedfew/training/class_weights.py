"""Balanced class weights: in a client's training loss, a class weighs the inverse of its frequency among the client's own labels.

Weights are scaled so that the client's training samples weigh 1 on average. The counts never leave the client.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedfew.config import LocalTraining
from fedfew.federation import Federation


def balanced(labels: Tensor, classes: int) -> Tensor:
    """n / (number of classes present · n_c), ``[classes]``; a class without samples weighs 1, which only smoothing notices."""
    counts = torch.bincount(labels.flatten(), minlength=classes).double()
    present = counts > 0
    return (len(labels) / (present.sum() * counts)).where(present, 1.0).float()


def with_class_weights(federation: Federation, training: LocalTraining, classes: int | None = None) -> Federation:
    """The federation whose clients weigh classes in training, where the settings ask for it.

    classes: of the model, where there are more than in these data (as at a site that does not have them all).
    """
    if training.class_weights == "none":
        return federation
    train = federation.train
    weights = [balanced(train.y[train.rows(i)], classes or federation.classes) for i in range(len(federation))]
    return replace(federation, train=replace(train, class_weights=torch.stack(weights)))
