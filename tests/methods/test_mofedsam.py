from __future__ import annotations

import pytest
import torch

from fedfew.methods import FedAvg, FedSAM, MoFedSAM
from tests.methods.small import (
    FULL_BATCH,
    PLAIN,
    assert_close,
    assert_same,
    clients_of,
    federation,
    gradient,
    initial,
    linear,
    mean_by_samples,
    theta,
    train,
)


def test_two_rounds_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    direction, lr, epochs = torch.zeros_like(w), FULL_BATCH["lr"], FULL_BATCH["local_epochs"]
    for _ in range(2):
        trained = []
        for x, y in clients_of(data):
            v = w
            for _ in range(epochs):
                g = gradient(v, x, y)
                v = v - lr * (0.4 * gradient(v + 0.3 * g / g.norm(), x, y) + 0.6 * direction)
            trained.append(v)
        after = mean_by_samples(trained, data)
        direction, w = (w - after) / (lr * epochs), after
    run = train(MoFedSAM(rho=0.3, beta=0.4), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    found = {name: t[0] for name, t in run.state.server["direction"].items()}
    assert_close(theta(found), direction)


@pytest.mark.slow
def test_without_momentum_it_is_fedsam_and_without_looking_uphill_fedavg() -> None:
    for method, same in ((MoFedSAM(beta=1.0), FedSAM()), (MoFedSAM(beta=1.0, rho=0.0), FedAvg())):
        assert_same(dict(train(method).models[0].state_dict()), dict(train(same).models[0].state_dict()), 2e-6)


def test_the_direction_is_the_gradient_where_that_is_constant() -> None:
    """By local momentum the updates are longer, the direction is not: with a tiny lr all steps see the same gradient, and after a
    first round of β·g the direction is β·g."""
    data, tiny = federation((8,) * 6), PLAIN | {"model": linear, "batch_size": 100, "rounds": 1, "local_epochs": 3, "lr": 1e-3}
    w = theta(initial(linear))
    expected = torch.stack([gradient(w, x, y) for x, y in clients_of(data)]).mean(0)
    for momentum in (0.0, 0.9):
        run = train(MoFedSAM(rho=0.0, beta=0.5), data, **(tiny | {"momentum": momentum}))
        found = theta({name: t[0] for name, t in run.state.server["direction"].items()})
        torch.testing.assert_close(found, 0.5 * expected, rtol=1e-2, atol=1e-4)
