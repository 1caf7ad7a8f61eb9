from __future__ import annotations

import torch

from fedfew.methods import Ditto, FedAvg, LocalOnly
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    gradient,
    initial,
    linear,
    mean_by_samples,
    served,
    theta,
    train,
)


def test_two_rounds_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    v = [w] * len(data)
    for _ in range(2):
        v = [descend(v_i, x, y, pull=0.6, to=w) for v_i, (x, y) in zip(v, clients_of(data), strict=True)]
        w = mean_by_samples([descend(w, x, y) for x, y in clients_of(data)], data)
    run = train(Ditto(lam=0.6), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    for client, v_i in enumerate(v):
        assert_close(theta(run.model_of(client).state_dict()), v_i)


def test_global_model_is_fedavgs() -> None:
    assert_same(dict(train(Ditto()).state.server), dict(train(FedAvg()).state.server))


def test_without_pull_it_is_local_training() -> None:
    ditto, local = train(Ditto(lam=0.0)), train(LocalOnly())
    for a, b in zip(served(ditto), served(local), strict=True):
        assert_same(a, b)
    assert Ditto.as_published() == Ditto(lam=0.0, personal_epochs=1)


def test_with_a_strong_pull_it_is_the_global_model() -> None:
    """Where the personal model comes to rest, ∇F(v) + λ(v − w) = 0: it is ‖∇F(v)‖/λ from the global model, which vanishes."""
    data = federation((5, 7))
    settings = FULL_BATCH | {"lr": 0.01}
    w = theta(train(FedAvg(), data, **(settings | {"rounds": 1})).models[0].state_dict())  # what round 2 hands out
    for lam in (20.0, 50.0):
        run = train(Ditto(lam=lam, personal_epochs=80), data, **settings)
        for client, (x, y) in enumerate(clients_of(data)):
            v = theta(run.model_of(client).state_dict())
            assert_close(v - w, -gradient(v, x, y) / lam)
            assert torch.dist(v, w) < 2 / lam
