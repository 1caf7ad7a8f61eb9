"""Weights of single samples in local training, and the losses of single samples, on every engine."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedfew import random_streams
from fedfew.config import LocalTraining
from fedfew.engines import mixup
from fedfew.local import Local, LocalEpochs, cross_entropy
from fedfew.models.batch_norm import without_statistics
from fedfew.stack import leaves, tree_map
from fedfew.training.class_weights import with_class_weights
from fedfew.training.label_prior import with_label_prior
from tests.engines.small import ENGINES, FEDERATION, assert_close, mlp, replicas
from tests.engines.stacked.test_captured import CapturedStack
from tests.helpers import linear

ALL = [*ENGINES, CapturedStack]
LONGEST = FEDERATION.train.longest
DRAWN = torch.rand(len(FEDERATION), 2, LONGEST, generator=torch.Generator().manual_seed(0))
RICH = {"mixup": 0.4, "class_weights": "balanced", "label_smoothing": 0.2, "momentum": 0.5}


def normalised():
    return nn.Sequential(nn.Linear(FEDERATION.shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def trained(cls, weights, rounds=1, **training):
    settings = LocalTraining(**({"lr": 0.1, "batch_size": 5} | training))
    data = with_class_weights(FEDERATION, settings)
    engine, params = cls(linear(), settings, 3), replicas(linear)
    for _ in range(rounds):
        found = engine.train(LocalEpochs(params, data.train, data.ids, 3, cross_entropy, {}, 2, weights=weights))
    return found


def reference(i, k, training):
    """One replica: Σ_j q_j·loss_j divided by what PyTorch divides an unweighted sum by."""
    module = linear()
    module.load_state_dict(tree_map(lambda t: t[i, k], replicas(linear)))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=training.get("momentum", 0.0))
    x, y = FEDERATION.train.of(i)
    counts = torch.bincount(y, minlength=3).float()
    balanced = torch.where(counts > 0, len(y) / ((counts > 0).sum() * counts), 1.0)
    weight = balanced if "class_weights" in training else torch.ones(3)
    for epoch in range(2):
        order = random_streams.order(3, 3, FEDERATION.ids, 2, epoch, FEDERATION.train.count, LONGEST)[i, k, : len(y)]
        key = random_streams.count(random_streams.MIXUP, 3, 3, epoch, int(FEDERATION.ids[i]), k)
        for step, batch in enumerate(order.split(5)):
            at, labels, q, share = x[batch], y[batch], DRAWN[i, k, batch], torch.tensor(1.0)
            if "mixup" in training:
                share = mixup.beta_quantile(random_streams.uniform(key, torch.tensor(step)), training["mixup"])
                at = share * at + (1 - share) * at.roll(-1, 0)
            loss = torch.zeros(())
            for part, of, by in ((share, labels, q), (1 - share, labels.roll(-1), q.roll(-1))):
                each = F.cross_entropy(
                    module(at), of, weight, label_smoothing=training.get("label_smoothing", 0.0), reduction="none"
                )
                loss = loss + part * (by * each).sum() / weight[of].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("training", [{}, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("cls", ALL)
def test_losses_are_multiplied_by_the_samples_weights(cls, training):
    found, _ = trained(cls, DRAWN, rounds=3 if cls is CapturedStack else 1, **training)  # the third is a replay
    for i in range(len(FEDERATION)):
        for k in range(2):
            assert_close(tree_map(lambda t, i=i, k=k: t[i, k], found), dict(reference(i, k, training)), 2e-5)


@pytest.mark.parametrize("cls", ALL)
def test_weights_of_one_change_nothing_and_weights_of_zero_stop_training(cls):
    plain, losses = trained(cls, None)
    ones, same = trained(cls, torch.ones_like(DRAWN))
    assert_close(plain, ones, 1e-6)
    torch.testing.assert_close(losses, same, rtol=1e-5, atol=1e-6)
    still, nothing = trained(cls, torch.zeros_like(DRAWN))
    assert_close(still, replicas(linear), 0.0)
    assert not nothing.any()


@pytest.mark.parametrize("cls", ENGINES)
@pytest.mark.parametrize("factory", [mlp, normalised, lambda: without_statistics(normalised())], ids=["mlp", "norm", "batch"])
def test_losses_of_samples_average_to_the_losses_of_clients(cls, factory):
    settings = LocalTraining(lr=0.1, batch_size=5, label_prior="client")
    data = with_label_prior(FEDERATION, settings)
    engine = cls(factory(), settings, 3)
    local = Local(engine, data.train, data.ids, 1, torch.full((len(data),), 1 / len(data)))
    for params in (replicas(factory), tree_map(lambda t: t[:1], replicas(factory))):
        found = local.sample_losses(params)
        assert found.shape == (len(data), 2, LONGEST)
        torch.testing.assert_close(local.sample_mean(found).float(), local.losses(params), rtol=1e-5, atol=1e-5)
        beyond = torch.arange(LONGEST) >= data.train.count[:, None]
        assert not found.transpose(1, 2)[beyond].any()


def test_the_loss_of_a_sample_by_hand():
    engine, params = ENGINES[0](linear(), LocalTraining(lr=0.1, batch_size=5), 3), replicas(linear)
    found = engine.sample_losses(params, FEDERATION.train)
    x, y = FEDERATION.train.of(1)
    logits = x[2] @ params["weight"][1, 0].T + params["bias"][1, 0]
    assert leaves(params)[0].shape[:2] == (len(FEDERATION), 2)
    assert float(found[1, 0, 2]) == pytest.approx(-float(logits.log_softmax(0)[y[2]]), rel=1e-5)
