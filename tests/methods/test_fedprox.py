from __future__ import annotations

from fedfew.methods import FedAvg, FedProx
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    mean_by_samples,
    tensors,
    theta,
    train,
)


def test_two_rounds_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    for _ in range(2):
        w = mean_by_samples([descend(w, x, y, pull=0.7, to=w) for x, y in clients_of(data)], data)
    assert_close(theta(train(FedProx(mu=0.7), data, **FULL_BATCH).models[0].state_dict()), w)


def test_without_pull_it_is_fedavg() -> None:
    assert_same(tensors(train(FedProx(mu=0.0))), tensors(train(FedAvg())))
    assert FedProx.as_published() == FedProx(mu=0.0)


def test_a_stronger_pull_keeps_clients_nearer() -> None:
    start = theta(initial(linear))
    moved = [(theta(train(FedProx(mu=mu), **FULL_BATCH).models[0].state_dict()) - start).norm() for mu in (0.0, 0.5, 1.0, 1.5)]
    assert moved == sorted(moved, reverse=True)
