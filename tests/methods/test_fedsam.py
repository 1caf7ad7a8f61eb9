from __future__ import annotations

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


def test_a_round_by_hand() -> None:
    data = federation((7, 12))
    w = theta(initial(linear))
    trained = []
    for x, y in clients_of(data):
        g = gradient(w, x, y)
        trained.append(w - FULL_BATCH["lr"] * gradient(w + 0.3 * g / g.norm(), x, y))
    run = train(FedSAM(rho=0.3), data, **(FULL_BATCH | {"rounds": 1, "local_epochs": 1}))
    assert_close(theta(run.models[0].state_dict()), mean_by_samples(trained, data))


def test_without_looking_uphill_it_is_fedavg() -> None:
    assert_same(tensors(train(FedSAM(rho=0.0))), tensors(train(FedAvg())), 2e-6)
