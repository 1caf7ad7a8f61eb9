from __future__ import annotations

import torch

from fedfew.methods import FedAvg, Scaffold
from fedfew.stack import take
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
    tensors,
    theta,
    train,
)

STEPS, LR = FULL_BATCH["local_epochs"], FULL_BATCH["lr"]


def test_the_second_round_by_hand() -> None:
    """One step per round on all data: the corrected step of every client is the step of the mean gradient."""
    data = federation()
    one_step = FULL_BATCH | {"local_epochs": 1}
    w = theta(initial(linear))
    for _ in range(2):  # c_i − c + (x − y)/lr is the client's own gradient, so that clients part in the next round only
        w = w - LR * mean_by_samples([gradient(w, x, y) for x, y in clients_of(data)], data)
    run = train(Scaffold(), data, **one_step)
    assert_close(theta(run.models[0].state_dict()), w)


def test_two_rounds_with_both_variates_by_hand() -> None:
    data = federation()
    start = theta(initial(linear))
    for variate in ("steps", "gradient"):
        w, c = start, [torch.zeros_like(start) for _ in range(len(data))]
        for _ in range(2):
            middle, before = mean_by_samples(c, data), w
            trained = []
            for i, (x, y) in enumerate(clients_of(data)):
                v = w
                for _ in range(STEPS):
                    v = v - LR * (gradient(v, x, y) - c[i] + middle)
                c[i] = gradient(w, x, y) if variate == "gradient" else c[i] - middle + (before - v) / (STEPS * LR)
                trained.append(v)
            w = w + 0.5 * (mean_by_samples(trained, data) - w)
        run = train(Scaffold(variate=variate, server_step=0.5), data, **FULL_BATCH)  # type: ignore[arg-type]
        assert_close(theta(run.models[0].state_dict()), w)
        for i, kept in enumerate(c):
            assert_close(theta(take(run.state.own, i)), kept)
        assert_close(theta(take(run.state.server["variate"], 0)), mean_by_samples(c, data))


def test_while_the_variates_are_zero_it_is_fedavg() -> None:
    scaffold, fedavg = train(Scaffold(), rounds=1), train(FedAvg(), rounds=1)
    assert_same(dict(scaffold.models[0].state_dict()), dict(fedavg.models[0].state_dict()))


def test_absent_clients_count_in_the_servers_variate() -> None:
    """c moves by |S|/N of the mean change: half of the clients, half of it."""
    data = federation((8,) * 6)
    run = train(Scaffold(), data, **(FULL_BATCH | {"participation": 0.5, "rounds": 1}))
    start = theta(initial(linear))
    present = (~torch.from_numpy(run.history.last("losses")).isnan().all(1)).nonzero()[:, 0].tolist()
    assert len(present) == 3
    everyone = clients_of(data)
    changes = [(start - descend(start, *everyone[i])) / (STEPS * LR) for i in present]
    assert_close(theta(take(run.state.server["variate"], 0)), sum(changes) / 6)


def test_the_servers_optimiser_leaves_the_variate_alone() -> None:
    plain, moved = (train(Scaffold(), rounds=1, server_optimizer="momentum", server_lr=lr) for lr in (1.0, 0.5))
    for name, value in tensors(plain).items():
        if name.startswith("server/variate"):
            assert torch.equal(value, tensors(moved)[name])
    assert not torch.equal(plain.models[0].state_dict()["0.weight"], moved.models[0].state_dict()["0.weight"])


def test_variates_travel_both_ways() -> None:
    run, model = train(Scaffold(), rounds=1, participation=1.0, model=linear), 4 * (4 * 3 + 3)
    assert run.history.last("bytes_down") == len(federation()) * 2 * model
    assert run.history.last("bytes_up") == len(federation()) * (2 * model + 4)
