from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedfew.federation import Federation
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


def quadratic(beta: float, momentum: float, rate: float, steps: int) -> Tensor:
    """A round on F(w) = h·w²/2 with server momentum as a matrix on (w, lr·Δ, the server's moment); rate: lr·h."""
    w, direction = torch.eye(3, dtype=torch.float64)[:2]
    after = w
    for _ in range(steps):
        after = after - beta * rate * after - (1 - beta) * direction
    moment = torch.tensor([0, 0, momentum], dtype=torch.float64) + after - w
    return torch.stack([w + moment, (w - after) / steps, moment])


def radius(*setting: float) -> float:
    return float(torch.linalg.eigvals(quadratic(*setting)).abs().max())


def test_with_server_momentum_a_quadratic_moves_as_derived() -> None:
    """F(w) = w²/2 from one sample x = √½, y = 0 under the mean squared error: with β = 0.5 it runs away, with 0.9 it does not."""
    x = torch.full((1, 1), 0.5**0.5)
    data = Federation.from_arrays([(x, 0 * x)], [(x, 0 * x)], task="regression")
    settings = PLAIN | {"rounds": 60, "score_every": 60, "lr": 0.3, "server_optimizer": "momentum", "server_momentum": 0.9}
    start = nn.Linear(1, 1, bias=False)
    nn.init.ones_(start.weight)
    for beta, away in ((0.5, True), (0.9, False)):
        run = train(MoFedSAM(rho=0.0, beta=beta), data, lambda: nn.Linear(1, 1, bias=False), start=[start], **settings)
        found, round_ = run.models[0].weight.item(), quadratic(beta, 0.9, 0.3, 2)
        assert found == pytest.approx(torch.linalg.matrix_power(round_, 60)[0, 0].item(), rel=1e-3, abs=1e-5)
        assert (abs(found) > 10) == away


@pytest.mark.parametrize(("beta", "momentum"), [(0.1, 0.5), (0.5, 0.5), (0.1, 0.9), (0.5, 0.9), (0.9, 0.9)])
def test_the_bound_on_the_curvature_is_where_it_becomes_unstable(beta: float, momentum: float) -> None:
    """lr·steps·h = (1 − m(1 − β))·(1 − m) / m(1 − β), where local steps are short."""
    past = momentum * (1 - beta)
    bound = (1 - past) * (1 - momentum) / past
    assert radius(beta, momentum, 0.99 * bound, 1) < 1 < radius(beta, momentum, 1.01 * bound, 1)
    assert MoFedSAM(beta=beta).stable_up_to(momentum) == pytest.approx(bound)
    least = MoFedSAM.least_beta(momentum)
    assert radius(least + 0.01, momentum, 1.0, 1) < 1 < radius(least - 0.01, momentum, 1.0, 1)


def test_the_default_is_stable_with_server_momentum_whatever_the_curvature() -> None:
    rates = [0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0]
    for steps in (1, 2, 5, 20, 100):
        assert max(radius(MoFedSAM().beta, 0.9, rate, steps) for rate in rates) < 1
        assert max(radius(0.5, 0.9, rate, steps) for rate in rates) > 1.05


def test_a_line_names_a_beta_that_is_unstable_with_server_momentum() -> None:
    def lines(method: MoFedSAM, **settings: float | str) -> list[str]:
        found: list[str] = []
        train(method, rounds=1, on_round=lambda progress: found.extend(progress.events), **settings)
        return found

    moved = {"server_optimizer": "momentum", "server_momentum": 0.9}
    expected = (
        "mofedsam: beta is 0.5 with server_momentum 0.9: the model oscillates where lr · steps · curvature is above 0.12. "
        "Set beta to 0.9 or more (docs/methods/mofedsam.md)"
    )
    assert lines(MoFedSAM(beta=0.5), **moved) == [expected]
    assert lines(MoFedSAM(beta=0.5)) == lines(MoFedSAM(beta=0.9), **moved) == []
    assert lines(MoFedSAM(beta=0.5), **moved, server_lr=0.1) == []
