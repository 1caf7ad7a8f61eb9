from __future__ import annotations

import torch

from fedfew.methods import FedSoft, LocalOnly
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
    loss_of,
    served,
    theta,
    train,
)

LAM, SIGMA, LR = 0.5, 0.2, FULL_BATCH["lr"]


def test_two_rounds_by_hand() -> None:
    data = federation()

    start = theta(initial(linear))
    method = FedSoft(models=3, lam=LAM, sigma=SIGMA)
    centres = [start, *(theta(fresh) for fresh in initial_models(3)[1:])]
    own, n = [start] * len(data), data.train.count.double()
    for _ in range(2):
        u = torch.zeros(len(data), 3, dtype=torch.float64)
        for i, (x, y) in enumerate(clients_of(data)):
            for j in range(len(y)):
                losses = [loss_of(c, x[j : j + 1], y[j : j + 1]) for c in centres]
                u[i, losses.index(min(losses))] += 1 / len(y)
            u[i] = u[i].clamp_min(SIGMA)
            for _ in range(FULL_BATCH["local_epochs"]):
                pull = sum(LAM * u[i, s] * (own[i] - centres[s]) for s in range(3))
                own[i] = own[i] - LR * (gradient(own[i], x, y) + pull)
        weights = n[:, None] * u / (n[:, None] * u).sum(0)
        centres = [sum(weights[i, s] * own[i] for i in range(len(data))) for s in range(3)]
    run = train(method, data, **FULL_BATCH)
    for s in range(3):
        assert_close(theta(run.models[s].state_dict()), centres[s])
    for i in range(len(data)):
        assert_close(theta(take(run.state.own, i)), own[i])


def initial_models(number: int) -> list[dict[str, torch.Tensor]]:
    from fedfew.methods import FedFew

    still = train(FedFew(models=number), **(FULL_BATCH | {"lr": 1e-30, "rounds": 1}))
    return [dict(model.state_dict()) for model in still.models]


def test_without_pull_it_is_local_only() -> None:
    run, local = train(FedSoft(lam=0.0)), train(LocalOnly())
    for mine, theirs in zip(served(run), served(local), strict=True):
        assert_same(mine, theirs, 2e-6)


def test_one_centre_is_the_mean_of_the_clients_models() -> None:
    data = federation()
    run = train(FedSoft(models=1), data, **(FULL_BATCH | {"rounds": 1}))
    n = data.train.count.double()
    models = torch.stack([theta(take(run.state.own, i)) for i in range(len(data))])
    assert_close(theta(run.models[0].state_dict()), torch.einsum("i,i...->...", n / n.sum(), models))


def test_a_client_sends_one_model_its_parts_and_its_losses() -> None:
    run, model = train(FedSoft(models=3), rounds=1, participation=1.0, model=linear), 4 * (4 * 3 + 3)
    assert run.history.last("bytes_up") == len(federation()) * (model + 3 * 4 + 3 * 4)
    assert run.history.last("bytes_down") == len(federation()) * 3 * model
