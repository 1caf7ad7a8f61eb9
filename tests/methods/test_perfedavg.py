from __future__ import annotations

import torch
from torch.func import grad

import fedfew
from fedfew.methods import FedAvg, PerFedAvg
from fedfew.stack import take
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
    theta,
    train,
)

ALPHA, LR = 0.4, FULL_BATCH["lr"]


def test_a_round_of_first_order_steps_by_hand() -> None:
    data, w = federation(), theta(initial(linear))
    trained = []
    for x, y in clients_of(data):
        v = w
        for _ in range(FULL_BATCH["local_epochs"]):
            v = v - LR * gradient(v - ALPHA * gradient(v, x, y), x, y)
        trained.append(v)
    run = train(PerFedAvg(variant="FO", alpha=ALPHA), data, **(FULL_BATCH | {"rounds": 1}))
    assert_close(theta(run.models[0].state_dict()), mean_by_samples(trained, data))
    for i, (x, y) in enumerate(clients_of(data)):  # what a client keeps: one step away from what it received
        assert_close(theta(take(run.state.own, i)), w - ALPHA * gradient(w, x, y))


def test_the_hessian_free_step_is_the_gradient_of_the_loss_after_a_step() -> None:
    """∇ of F(w − α·∇F(w)) by automatic differentiation, Hessian and all."""
    data, w = federation(), theta(initial(linear))

    def after_a_step(v: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([x, torch.ones(len(x), 1)], 1).double()
        return -(inputs @ (v - ALPHA * gradient(v, x, y)).T).log_softmax(1)[torch.arange(len(y)), y].mean()

    trained = [w - LR * grad(after_a_step)(w, x, y) for x, y in clients_of(data)]
    settings = FULL_BATCH | {"rounds": 1, "local_epochs": 1}
    run = train(PerFedAvg(alpha=ALPHA, delta=1e-2), data, **settings)
    assert_close(theta(run.models[0].state_dict()), mean_by_samples(trained, data))
    first_order = train(PerFedAvg(variant="FO", alpha=ALPHA), data, **settings)
    apart = theta(first_order.models[0].state_dict()) - theta(run.models[0].state_dict())
    assert float(apart.abs().max()) > 1e-3  # the Hessian matters here


def test_without_a_step_of_its_own_it_is_fedavg() -> None:
    run, fedavg = train(PerFedAvg(alpha=0.0)), train(FedAvg())
    assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


def test_where_the_curvature_is_above_one_over_alpha_first_order_steps_go_uphill() -> None:
    """F(w) = h·w²/2 with α·h = 3.2: a step multiplies w by 1 − lr·h·(1 − αh), with the Hessian by 1 − lr·h·(1 − αh)²."""
    x, y = torch.full((4, 1), 2.0).numpy(), torch.zeros(4, 1).numpy()  # mean squared error (2w)²: h = 8
    data = fedfew.Federation.from_arrays([(x, y)] * 2, [(x, y)] * 2, task="regression")
    for variant, factor in (("FO", 1 + 0.01 * 8 * 2.2), ("HF", 1 - 0.01 * 8 * 2.2**2)):
        model = torch.nn.Linear(1, 1, bias=False)
        method = PerFedAvg(variant=variant, alpha=0.4)
        run = fedfew.train(
            data, lambda: torch.nn.Linear(1, 1, bias=False), method, rounds=1, lr=0.01, batch_size=4, start=[model]
        )
        assert_close(run.models[0].weight.detach(), factor * model.weight.detach())


def test_where_the_curvature_is_one_over_alpha_the_model_stays() -> None:
    """F(w) = 8·w²/2, α = 1/8: one step of a client's own leads to the minimum from anywhere, so nothing pulls w back."""
    x, y = torch.full((4, 1), 2.0).numpy(), torch.zeros(4, 1).numpy()
    data = fedfew.Federation.from_arrays([(x, y)] * 2, [(x, y)] * 2, task="regression")
    model = torch.nn.Linear(1, 1, bias=False)
    build, settings = lambda: torch.nn.Linear(1, 1, bias=False), {"rounds": 3, "lr": 0.01, "batch_size": 4, "start": [model]}
    run = fedfew.train(data, build, PerFedAvg(alpha=1 / 8), **settings)
    assert_close(run.models[0].weight.detach(), model.weight.detach())
    fedavg = fedfew.train(data, build, FedAvg(), **settings)
    assert_close(fedavg.models[0].weight.detach(), (1 - 0.01 * 8) ** 3 * model.weight.detach())
