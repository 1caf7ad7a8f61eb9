from __future__ import annotations

import torch

from fedfew.methods import FedMTL, LocalOnly
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    served,
    theta,
    train,
)


def test_two_rounds_by_hand() -> None:
    data = federation()
    w = [theta(initial(linear))] * len(data)
    for _ in range(2):
        mean = torch.stack(w).mean(0)
        w = [descend(w_i, x, y, pull=0.6, to=mean) for w_i, (x, y) in zip(w, clients_of(data), strict=True)]
    run = train(FedMTL(lam=0.6), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), torch.stack(w).mean(0))
    for client, w_i in enumerate(w):
        assert_close(theta(run.model_of(client).state_dict()), w_i)


def test_the_mean_counts_absent_clients() -> None:
    run = train(FedMTL(), rounds=4, participation=0.5)
    everyone = served(run)
    for name, value in run.models[0].state_dict().items():
        assert_close(value, torch.stack([state[name] for state in everyone]).mean(0))


def test_the_penalty_is_a_gradient_step_on_the_regulariser() -> None:
    """λ/2·tr(W Ω Wᵀ) with Ω = I − 11ᵀ/M has gradient λ·W Ω, which is λ(w_i − w̄) in column i."""
    draw = torch.Generator().manual_seed(0)
    W = torch.randn(5, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    omega = torch.eye(4, dtype=torch.float64) - torch.ones(4, 4, dtype=torch.float64) / 4
    (0.5 * torch.trace(W @ omega @ W.T)).backward()
    params, mean = {"w": W.detach()[:, 1].clone().requires_grad_()}, {"w": W.detach().mean(1)}
    value, reported = FedMTL(lam=1.0).objective(lambda p: 0.0 * p["w"].sum(), params, mean)
    value.backward()
    assert_close(params["w"].grad, W.grad[:, 1])
    assert reported == 0


def test_without_penalty_it_is_local_training() -> None:
    for a, b in zip(served(train(FedMTL(lam=0.0))), served(train(LocalOnly())), strict=True):
        assert_same(a, b)
    assert FedMTL.as_published() == FedMTL(lam=0.0)


def test_a_stronger_pull_brings_clients_together() -> None:
    def spread(lam: float) -> torch.Tensor:
        w = torch.stack([theta(state) for state in served(train(FedMTL(lam=lam), **FULL_BATCH))])
        return (w - w.mean(0)).norm()

    apart = [spread(lam) for lam in (0.0, 0.5, 1.0, 1.5)]
    assert apart == sorted(apart, reverse=True)
