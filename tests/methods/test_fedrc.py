from __future__ import annotations

import pytest
import torch
from torch import nn

from fedfew.federation import Federation
from fedfew.methods import FedEM, FedRC
from tests.methods.small import FULL_BATCH, PLAIN, assert_close, assert_same, clients_of, federation, linear, theta, train


def test_two_rounds_by_hand() -> None:
    """One step on all data per round: γ_k ∝ ω_k·p_k(y|x)/C_k(y), with C_k from the round before."""
    data, settings = federation(), FULL_BATCH | {"local_epochs": 1}
    models = [theta(m.state_dict()) for m in train(FedRC(models=2), data, **(settings | {"lr": 1e-30})).models]
    share = (data.train.count / data.train.count.sum()).tolist()
    omega, classes = torch.full((6, 2), 0.5, dtype=torch.float64), torch.full((2, 3), 1 / 3, dtype=torch.float64)
    for _ in range(2):
        moved, counted = [torch.zeros_like(m) for m in models], torch.zeros(2, 3, dtype=torch.float64)
        for i, (p, (x, y)) in enumerate(zip(share, clients_of(data), strict=True)):
            inputs, labels = torch.cat([x, torch.ones(len(x), 1)], 1).double(), torch.eye(3, dtype=torch.float64)[y]
            fit = torch.stack([(inputs @ m.T).softmax(1)[torch.arange(len(y)), y] for m in models]) / classes[:, y]
            joint = omega[i][:, None] * fit
            gamma = joint / joint.sum(0)
            omega[i] = gamma.mean(1)
            counted += p * gamma @ labels / len(y)
            for k, m in enumerate(models):
                residual = (inputs @ m.T).softmax(1) - labels
                moved[k] -= settings["lr"] * p * 2 * (gamma[k][:, None] * residual).T @ inputs / len(y)
        models = [m + step for m, step in zip(models, moved, strict=True)]
        classes = (counted / counted.sum(1, keepdim=True)).clamp_min(1e-3)
    run = train(FedRC(models=2), data, **settings)
    for k in range(2):
        assert_close(theta(run.models[k].state_dict()), models[k])
    assert_close(run.state.own["pi"], omega)
    assert_close(run.state.server["classes"], classes)


def test_one_model_is_that_of_fedem() -> None:
    run, em = train(FedRC(models=1)), train(FedEM(models=1))
    assert_same(dict(run.models[0].state_dict()), dict(em.models[0].state_dict()), 2e-6)


def test_while_all_classes_are_as_frequent_everywhere_it_is_fedem() -> None:
    run, em = train(FedRC(), rounds=1), train(FedEM(), rounds=1)
    for mine, theirs in zip(run.models, em.models, strict=True):
        assert_same(dict(mine.state_dict()), dict(theirs.state_dict()), 2e-6)


def test_clients_with_other_labels_stay_together_longer_than_with_fedem() -> None:
    """All clients see the same three blobs, but each almost only one of them: nothing but label frequencies differs."""
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 4, generator=draw)
    parts = []
    for client in range(6):
        y = torch.cat([torch.full((27,), client % 3), torch.arange(3)])
        parts.append((centres[y] + 0.3 * torch.randn(30, 4, generator=draw), y))
    data = Federation.from_arrays(parts, parts, classes=3)
    settings = PLAIN | {"rounds": 15, "score_every": 15, "engine": "stacked", "batch_size": 30, "lr": 0.3}
    apart = [
        float(torch.cdist(p, p).mean()) for p in (train(m(models=3), data, **settings).state.own["pi"] for m in (FedRC, FedEM))
    ]
    assert apart[0] < 0.8 * apart[1]


def test_a_model_that_no_sample_belongs_to_stays() -> None:
    """All samples have a loss of about 1000 under the second model: every γ of it is 0."""
    parts = [(torch.randn(8, 4), torch.arange(8) % 2)] * 2
    models = [linear(), linear()]
    models[1].bias.data[2] = 1000.0
    run = train(FedRC(models=2), Federation.from_arrays(parts, parts, classes=3), linear, start=models)
    assert run.state.own["pi"].tolist() == [[1, 0]] * 2
    assert_close(run.state.server["classes"], torch.tensor([[0.5, 0.5, 1e-3], [1 / 3] * 3]))


def test_it_is_for_classes_alone() -> None:
    x = torch.randn(8, 4)
    data = Federation.from_arrays([(x, x[:, :1])] * 2, [(x, x[:, :1])] * 2, task="regression")
    with pytest.raises(ValueError, match="method: fedrc works with classes alone"):
        train(FedRC(models=2), data, model=lambda: nn.Linear(4, 1))
    with pytest.raises(ValueError, match="no linear layer"):
        train(FedRC(models=2), model=lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()))
