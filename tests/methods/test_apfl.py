from __future__ import annotations

import torch

from fedfew.methods import APFL, FedAvg, LocalOnly
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
    served,
    theta,
    train,
)

LR = FULL_BATCH["lr"]


def by_hand(alpha: float, rounds: int) -> tuple[torch.Tensor, list[torch.Tensor], list[float], bool]:
    """w, v and α by Algorithm 1, and whether α ever had to be projected."""
    data = federation()
    w = theta(initial(linear))
    v, alphas, projected = [w] * len(data), [alpha] * len(data), False
    for _ in range(rounds):
        sent = []
        for i, (x, y) in enumerate(clients_of(data)):
            w_i = w
            for _ in range(2):
                mix = alphas[i] * v[i] + (1 - alphas[i]) * w_i
                slope = gradient(mix, x, y)
                free = alphas[i] - LR * float(((v[i] - w_i) * slope).sum())
                w_i, v[i] = w_i - LR * gradient(w_i, x, y), v[i] - LR * alphas[i] * slope
                alphas[i] = min(max(free, 0.0), 1.0)
                projected |= free != alphas[i]
            sent.append(w_i)
        w = mean_by_samples(sent, data)
    return w, v, alphas, projected


def test_rounds_by_hand() -> None:
    w, v, alphas, _ = by_hand(0.3, rounds=2)
    run = train(APFL(alpha=0.3), **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    assert_close(run.state.own["alpha"], torch.tensor(alphas))
    assert len(set(alphas)) == len(alphas)
    for client, (v_i, alpha) in enumerate(zip(v, alphas, strict=True)):
        assert_close(theta(run.model_of(client).state_dict()), alpha * v_i + (1 - alpha) * w)


def test_alpha_is_projected_at_every_step() -> None:
    _, _, alphas, projected = by_hand(0.02, rounds=8)
    assert projected
    assert max(alphas) > min(alphas) == 0  # some stay at the bound, others have come back from it
    assert_close(train(APFL(alpha=0.02), **(FULL_BATCH | {"rounds": 8})).state.own["alpha"], torch.tensor(alphas))


def test_published_form_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    v, alphas = [w] * len(data), [0.8] * len(data)
    for _ in range(2):
        sent = []
        for i, (x, y) in enumerate(clients_of(data)):
            w_i, alpha = w, alphas[i]
            for _ in range(2):
                at_w, at_v = gradient(w_i, x, y), gradient(v[i], x, y)
                w_i, v[i] = w_i - LR * at_w, v[i] - LR * at_v
                slope = float(((v[i] - w_i) * (alpha * at_v + (1 - alpha) * at_w)).sum()) + 0.02 * alpha
                alpha = min(max(alpha - LR * slope, 0.0), 1.0)
            alphas[i] = alpha
            v[i] = alpha * v[i] + (1 - alpha) * w_i
            sent.append(w_i)
        w = mean_by_samples(sent, data)
    run = train(APFL.as_published(alpha=0.8), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    assert_close(run.state.own["alpha"], torch.tensor(alphas))
    for client, v_i in enumerate(v):
        assert_close(theta(run.model_of(client).state_dict()), v_i)


def test_all_own_is_local_training() -> None:
    for a, b in zip(served(train(APFL(alpha=1.0, adaptive=False))), served(train(LocalOnly())), strict=True):
        assert_same(a, b)


def test_all_global_is_fedavg() -> None:
    for a, b in zip(served(train(APFL(alpha=0.0, adaptive=False))), served(train(FedAvg())), strict=True):
        assert_same(a, b)


def test_only_the_global_model_travels() -> None:
    apfl, fedavg = train(APFL()).history, train(FedAvg()).history
    assert (apfl.bytes_up == fedavg.bytes_up).all()
    assert (apfl.bytes_down == fedavg.bytes_down).all()


def test_published_alpha_starts_at_one() -> None:
    assert APFL.as_published() == APFL(alpha=1.0, mixing="round")
