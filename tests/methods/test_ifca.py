from __future__ import annotations

import torch

from fedfew.methods import IFCA, FedAvg
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


def test_copies_are_fedavg_at_first() -> None:
    """Later a client may like an untrained copy better than the mean of all, and the copies part ways."""
    ifca, fedavg = train(IFCA.as_published(), rounds=1), train(FedAvg(), rounds=1)
    assert_same(dict(ifca.models[0].state_dict()), dict(fedavg.models[0].state_dict()))
    assert IFCA.as_published() == IFCA(init_models="copies")


def test_a_client_sends_one_model_and_its_losses() -> None:
    run = train(IFCA(models=3), rounds=1, participation=1.0, model=linear)
    model = 4 * (4 * 3 + 3)
    assert run.history.last("bytes_up") == len(federation()) * (model + 3 * 4)
    assert run.history.last("bytes_down") == len(federation()) * 3 * model
