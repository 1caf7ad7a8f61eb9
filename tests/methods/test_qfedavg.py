from __future__ import annotations

import math

import torch

from fedfew.methods import FedAvg, QFedAvg
from fedfew.methods.base import Reply
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    loss_of,
    theta,
    train,
)


def test_a_round_by_hand() -> None:
    data, lr, q = federation(), FULL_BATCH["lr"], 2.0
    w, share = theta(initial(linear)), (data.train.count / data.train.count.sum()).tolist()
    top, below = torch.zeros_like(w), 0.0
    for p, (x, y) in zip(share, clients_of(data), strict=True):
        step, f = (w - descend(w, x, y)) / lr, loss_of(w, x, y)
        top += p * f**q * step
        below += p * (q * f ** (q - 1) * float(step.square().sum()) + f**q / lr)
    run = train(QFedAvg(q=q), data, **(FULL_BATCH | {"rounds": 1}))
    assert_close(theta(run.models[0].state_dict()), w - top / below)


def test_q_zero_is_fedavg() -> None:
    q, fedavg = train(QFedAvg(q=0.0)), train(FedAvg())
    assert_same(dict(q.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 1e-6)


def test_a_larger_q_weighs_the_worst_client_more() -> None:
    reply = Reply({}, torch.tensor([[1.0], [2.0]]), torch.tensor([4, 4]))
    share = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for q in (0.0, 1.0, 3.0):
        log = QFedAvg(q=q).log_weights(reply, share, torch.arange(2))[:, 0]
        assert math.isclose(float(log[1] - log[0]), q * math.log(2.0), abs_tol=1e-12)


def test_a_client_without_any_loss_is_not_left_out_of_the_mean() -> None:
    reply = Reply({}, torch.tensor([[0.0]]), torch.tensor([4]))
    assert bool(QFedAvg().log_weights(reply, torch.ones(1), torch.arange(1)).isfinite().all())
