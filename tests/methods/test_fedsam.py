from __future__ import annotations

import pytest

from fedfew.methods import FedAvg, FedSAM
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    federation,
    gradient,
    initial,
    linear,
    mean_by_samples,
    tensors,
    theta,
    train,
)


@pytest.mark.slow
def test_two_rounds_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    for _ in range(2):
        trained = []
        for x, y in clients_of(data):
            v = w
            for _ in range(FULL_BATCH["local_epochs"]):
                g = gradient(v, x, y)
                v = v - FULL_BATCH["lr"] * gradient(v + 0.3 * g / g.norm(), x, y)
            trained.append(v)
        w = mean_by_samples(trained, data)
    assert_close(theta(train(FedSAM(rho=0.3), data, **FULL_BATCH).models[0].state_dict()), w)


def test_without_looking_uphill_it_is_fedavg() -> None:
    assert_same(tensors(train(FedSAM(rho=0.0))), tensors(train(FedAvg())), 2e-6)
