"""Training samples that a client keeps apart, to check training losses (``check_share``)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.config import TrainConfig
from fedfew.federation import Federation
from fedfew.methods import Method


def share(config: TrainConfig, method: Method) -> float:
    """``check_share`` where it has an effect, else 0. With differential privacy nothing may depend on other clients' losses."""
    return config.check_share if method.checks_losses and config.dp_noise == 0 else 0.0


def counts(samples: Tensor, share: float) -> Tensor:
    """How many of a client's n training samples [M] it keeps apart: the share, rounded, at most √n; one at least, but not all."""
    if share == 0:
        return torch.zeros_like(samples)
    n = samples.double()
    wanted = torch.minimum((share * n + 0.5).floor(), n.sqrt().floor()).clamp_min(1)
    return torch.minimum(wanted, n - 1).to(samples.dtype)


def with_counts_left(federation: Federation, config: TrainConfig, method: Method) -> Federation:
    """With as many training samples per client as :func:`kept_apart` leaves, for checks: which ones is not drawn."""
    train = federation.train
    apart = counts(train.count, share(config, method))
    return replace(federation, train=replace(train, count=train.count - apart, unseen=apart))


def kept_apart(federation: Federation, config: TrainConfig, method: Method) -> Federation:
    """The federation with such samples behind each client's training samples; the same where none are wanted. Which ones is drawn
    by seed and client. Labels are put into another order; features stay where they are."""
    of_each = share(config, method)
    if of_each == 0:
        return federation
    train = federation.train
    apart = counts(train.count, of_each)
    keys = random_streams.count(random_streams.count(random_streams.UNSEEN, config.seed), federation.ids.to(train.count.device))
    drawn = random_streams.permutations(keys[:, None], train.count, train.longest)[:, 0]
    order = torch.arange(len(train.y), device=train.y.device)
    for start, count, left, mixed in zip(
        *(t.tolist() for t in (train.start, train.count, train.count - apart)), drawn, strict=True
    ):
        of_client = torch.cat([mixed[:left].sort().values, mixed[left:count]])
        order[start : start + count] = start + of_client.to(order)
    row = train.rows_of_x(order)
    count = train.count - apart
    train = replace(train, y=train.y[order], row=row, count=count, longest=int(count.max()), unseen=apart)
    return replace(federation, train=train)
