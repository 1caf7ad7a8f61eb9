from __future__ import annotations

import torch

from fedfew.methods import FedAvg, FedDyn, FedProx
from fedfew.stack import take
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    clients_of,
    descend,
    federation,
    gradient,
    initial,
    linear,
    mean_by_samples,
    theta,
    train,
)

ALPHA = 0.3


def test_two_rounds_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    g, h = [torch.zeros_like(w) for _ in range(len(data))], torch.zeros_like(w)
    for _ in range(2):
        trained = []
        for i, (x, y) in enumerate(clients_of(data)):
            v = w
            for _ in range(FULL_BATCH["local_epochs"]):
                v = v - FULL_BATCH["lr"] * (gradient(v, x, y) - g[i] + ALPHA * (v - w))
            g[i] = g[i] - ALPHA * (v - w)
            trained.append(v)
        middle = mean_by_samples(trained, data)
        h = h - ALPHA * (middle - w)
        w = middle - h / ALPHA
    run = train(FedDyn(alpha=ALPHA), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    for i, kept in enumerate(g):
        assert_close(theta(take(run.state.own, i)), kept)


def test_in_the_first_round_the_server_goes_twice_as_far_as_fedprox() -> None:
    """g_i = h = 0: clients train as in FedProx; then −h/α is the mean move once more, or |S|/N of it."""
    start = theta(initial(linear))
    for participation, times in ((1.0, 2.0), (0.5, 1.5)):
        settings = FULL_BATCH | {"rounds": 1, "participation": participation}
        feddyn, fedprox = (train(m, federation((8,) * 6), **settings) for m in (FedDyn(alpha=ALPHA), FedProx(mu=ALPHA)))
        moved = [theta(run.models[0].state_dict()) - start for run in (feddyn, fedprox)]
        assert_close(moved[0], times * moved[1])


def test_where_alpha_vanishes_clients_train_as_in_fedavg_but_the_servers_step_stays() -> None:
    start = theta(initial(linear))
    settings = FULL_BATCH | {"rounds": 1}
    feddyn, fedavg = (theta(train(m, **settings).models[0].state_dict()) - start for m in (FedDyn(alpha=1e-6), FedAvg()))
    assert_close(feddyn, 2 * fedavg)


def test_at_the_minimum_the_shift_is_the_clients_gradient() -> None:
    """Many steps: ∇F_i(θ_i) − g_i + α(θ_i − θ) = 0, so the new g_i is ∇F_i(θ_i). The steps are those of FedProx."""
    data = federation((8,) * 2)
    run = train(FedDyn(alpha=1.0), data, **(FULL_BATCH | {"rounds": 1, "local_epochs": 300}))
    start = theta(initial(linear))
    for i, (x, y) in enumerate(clients_of(data)):
        v = start
        for _ in range(150):  # two steps each
            v = descend(v, x, y, pull=1.0, to=start)
        assert_close(theta(take(run.state.own, i)), gradient(v, x, y))
