from __future__ import annotations

import torch

from fedfew import random_streams
from fedfew.local import best_model
from fedfew.methods import IFCA, FedAvg
from fedfew.methods.ifca import ties_broken
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    linear,
    loss_of,
    tensors,
    theta,
    train,
)


def test_two_rounds_by_hand() -> None:
    data = federation()
    still = train(IFCA(models=3), data, **(FULL_BATCH | {"lr": 1e-30}))
    models = [theta(m.state_dict()) for m in still.models]
    assert not torch.equal(models[0], models[1])
    n = data.train.count.double()
    for _ in range(2):
        choice = [min(range(3), key=lambda k: loss_of(models[k], x, y)) for x, y in clients_of(data)]
        trained = [descend(models[k], x, y) for k, (x, y) in zip(choice, clients_of(data), strict=True)]
        for k in set(choice):
            joined = [i for i, c in enumerate(choice) if c == k]
            models[k] = sum(n[i] * trained[i] for i in joined) / n[joined].sum()
    run = train(IFCA(models=3), data, **FULL_BATCH)
    assert len(set(choice)) > 1
    for k in range(3):
        assert_close(theta(run.models[k].state_dict()), models[k])


def test_empty_clusters_are_kept() -> None:
    """Two copies tie, so everybody joins the first; the second stays what it was."""
    still, run = (train(IFCA(models=2, init_models="copies"), rounds=1, lr=lr) for lr in (1e-30, 0.2))
    assert_same(dict(run.models[1].state_dict()), dict(still.models[1].state_dict()))
    assert not torch.equal(run.models[0].state_dict()["0.weight"], still.models[0].state_dict()["0.weight"])


def test_one_cluster_is_fedavg() -> None:
    ifca, fedavg = tensors(train(IFCA(models=1))), tensors(train(FedAvg()))
    for name in ("history/losses",):  # IFCA reports them before training, FedAvg while training
        del ifca[name], fedavg[name]
    assert_same(ifca, fedavg)


def test_where_the_first_of_equals_is_taken_copies_are_fedavg_at_first() -> None:
    """Later a client may like an untrained copy better than the mean of all, and the copies part ways."""
    ifca, fedavg = train(IFCA(init_models="copies"), rounds=1), train(FedAvg(), rounds=1)
    rounding = 1e-6  # the mean of three models and that of one are matrix products of other shapes, on some processors other sums
    assert_same(dict(ifca.models[0].state_dict()), dict(fedavg.models[0].state_dict()), rounding)


def test_published_clients_spread_over_copies_at_random() -> None:
    """60 clients over 3 clusters: 20 each but for chance (standard deviation 3.7); other seeds and clients, other clusters."""
    assert IFCA.as_published() == IFCA(init_models="copies", ties="random")
    data = federation((5,) * 60)
    joined = []
    for seed in (0, 1):
        run = train(IFCA.as_published(), data, rounds=1, participation=1.0, seed=seed)
        losses = torch.from_numpy(run.history.last("losses"))
        joined.append(losses.argmin(1))
        assert 6 <= int(torch.bincount(joined[-1], minlength=3).min()) <= 20
        assert float((losses.amax(1) / losses.amin(1)).max()) < 1 + 1e-6
    assert not torch.equal(*joined)
    other = federation((5,) * 60).take(torch.arange(60).flip(0))
    again = train(IFCA.as_published(), other, rounds=1, participation=1.0, seed=1).history.last("losses")
    assert torch.equal(torch.from_numpy(again).argmin(1).flip(0), joined[1])  # a draw belongs to the client


def test_only_ties_are_broken() -> None:
    losses = torch.tensor([[1.0, 1.0, 2.0], [3.0, 2.0, 1.0], [float("nan"), 5.0, 5.0]])
    broken = ties_broken(losses.expand(50, 3, 3).reshape(150, 3), random_streams.count(0, torch.arange(150)))
    chosen = best_model(broken).reshape(50, 3)
    assert set(chosen[:, 0].tolist()) == {0, 1}
    assert set(chosen[:, 1].tolist()) == {2}
    assert set(chosen[:, 2].tolist()) == {1, 2}
    torch.testing.assert_close(broken, losses.expand(50, 3, 3).reshape(150, 3), rtol=2e-7, atol=0, equal_nan=True)


def test_a_client_sends_one_model_and_its_losses() -> None:
    run = train(IFCA(models=3), rounds=1, participation=1.0, model=linear)
    model = 4 * (4 * 3 + 3)
    assert run.history.last("bytes_up") == len(federation()) * (model + 3 * 4)
    assert run.history.last("bytes_down") == len(federation()) * 3 * model
