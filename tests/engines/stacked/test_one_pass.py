"""Scoring a small stack in one recorded pass: the same scores as model by model, split by split."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew.config import LocalTraining
from fedfew.engines import Sequential, Stacked
from fedfew.engines.stacked import one_pass
from fedfew.stack import tree_map
from tests.engines.small import SIZES, Normalised, images, mlp, replicas
from tests.helpers import federation

DATA = federation(sizes=(13, 22, 7, 27))
PRIOR = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def stacked(factory=mlp, **training):
    return Stacked(factory(), LocalTraining(**({"lr": 0.1, "batch_size": 8} | training)), 0)


def outputs_by_hand(params, samples, prior, i, s):
    module = mlp().eval()
    module.load_state_dict(tree_map(lambda t: t[i if len(t) > 1 else 0, s], params))
    return (module(samples.of(i)[0]) + (0 if prior is None else prior[i])).detach()


def by_hand(params, samples, prior, i, s):
    """Mean loss and accuracy of client i under model s, with plain modules."""
    logits, y = outputs_by_hand(params, samples, prior, i, s), samples.of(i)[1]
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


@pytest.mark.parametrize("prior", [None, PRIOR], ids=["no prior", "prior"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_both_splits_are_scored_at_once(shared, prior):
    engine = stacked()
    splits = [replace(s, log_prior=prior) for s in (DATA.train, DATA.test)]
    for _ in range(3):  # plain, recorded, replayed
        params = tree_map(torch.randn_like, tree_map(lambda t: t[: 1 if shared else 4], replicas(mlp, models=3)))
        found = engine.scores(params, splits)
        for samples, scores in zip(splits, found, strict=True):
            expected = torch.tensor([[by_hand(params, samples, prior, i, s) for s in range(3)] for i in range(4)])
            torch.testing.assert_close(scores.loss, expected[..., 0], rtol=1e-5, atol=1e-6)
            score = expected[..., 1] if samples is splits[-1] else torch.full((4, 3), torch.nan)  # nobody asks for it elsewhere
            torch.testing.assert_close(scores.score, score, equal_nan=True)
    assert len(engine._one_pass._recordings._recordings) == 1


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_other_tasks_score_as_one_replica_after_the_other_does(task):
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 5)).astype(np.float32), rng.normal(size=(n, 3)).astype(np.float32)) for n in SIZES]
    parts = [(x, (y > 0).astype(np.float32) if task == "multi-label" else y) for x, y in parts]
    data = fedfew.Federation.from_arrays(parts, parts, task=task)
    loss = {"regression": "mse", "multi-label": "bce"}[task]
    params = replicas(mlp)
    one, other = (cls(mlp(), LocalTraining(lr=0.1, batch_size=8, loss=loss), 0) for cls in (Stacked, Sequential))
    for _ in range(2):
        for name in ("loss", "score"):
            found, expected = (getattr(engine.score(params, data.train), name) for engine in (one, other))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("small", [one_pass.SMALL, 0], ids=["one pass", "batches"])
@pytest.mark.parametrize("clients", [1, 4], ids=["shared", "own"])
def test_a_mixture_scores_as_one_replica_after_the_other_does(clients, small, monkeypatch):
    monkeypatch.setattr(one_pass, "SMALL", small)
    samples = replace(DATA.test, log_prior=PRIOR)
    params = tree_map(lambda t: t[:clients], replicas(mlp, models=3))
    weights = torch.rand(4, 3).softmax(1)
    one, other = stacked(), Sequential(mlp(), LocalTraining(lr=0.1, batch_size=8), 0)
    for _ in range(2):
        found, expected = one.score_mixture(params, samples, weights), other.score_mixture(params, samples, weights)
        for of, by in zip(found, expected, strict=True):
            assert of.loss.shape == by.loss.shape
            torch.testing.assert_close(of.loss, by.loss, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(of.score, by.score)


def test_an_infinite_loss_is_not_lost_among_what_fills_a_client_up():
    """0 · ∞ would be NaN: rows that only fill up are left out, not multiplied by 0."""

    class Far(nn.Linear):
        def forward(self, x):
            return torch.where(x[:, :1] > 50, torch.tensor([0.0, -torch.inf]), super().forward(x))

    x, y = np.ones((3, 2), dtype=np.float32), np.ones(3, dtype=np.int64)
    x[0] = 100  # what fills up is a client's first row
    longer = np.ones((4, 2), dtype=np.float32), np.ones(4, dtype=np.int64)
    data = fedfew.Federation.from_arrays([longer, (x, y)], [longer] * 2, classes=2)
    engine = stacked(lambda: Far(2, 2))
    loss = engine.losses(replicas(lambda: Far(2, 2), 2, 1), data.train)[:, 0]
    assert loss[0].isfinite()
    assert loss[1] == torch.inf


def test_samples_are_laid_out_once_for_the_same_clients(monkeypatch):
    engine, params = stacked(), replicas(mlp)
    made = []
    original = one_pass.Layout.of
    monkeypatch.setattr(one_pass.Layout, "of", lambda splits: made.append(splits) or original(splits))
    for _ in range(3):
        engine.score(params, DATA.train.take(torch.arange(4)))
    assert len(made) == 1
    for _ in range(one_pass.KEPT + 1):
        engine.score(params, DATA.train.take(torch.tensor([1, 0, 3, 2])))
    assert len(engine._one_pass._layouts) == one_pass.KEPT


def test_what_mixes_samples_is_scored_split_by_split():
    """BatchNorm without running statistics would mix training and test samples."""

    class OfBatch(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.norm(x))

    engine, params = stacked(OfBatch), replicas(OfBatch)
    both = engine.scores(params, [DATA.train, DATA.test])
    torch.testing.assert_close(both[1].loss, engine.score(params, DATA.test).loss)
    assert not engine._one_pass._layouts
    normalised = stacked(Normalised)
    normalised.score(replicas(Normalised), images().test)
    assert normalised._one_pass._layouts  # with running statistics samples do not meet


@pytest.mark.parametrize("clients", [1, 4], ids=["shared", "own"])
def test_of_many_clients_some_are_scored_at_a_time(clients, monkeypatch):
    params = tree_map(lambda t: t[:clients], replicas(mlp))
    together = stacked().scores(params, [DATA.train, DATA.test])
    engine = stacked()
    each = engine.bytes_per_sample(DATA.train) * 2 * (DATA.train.longest + DATA.test.longest)
    monkeypatch.setattr(one_pass, "SMALL", 3 * each)
    monkeypatch.setattr("fedfew.engines.stacked.engine.FEWEST", 3)
    apart = engine.scores(params, [DATA.train, DATA.test])
    assert [len(layout.x) for layout in engine._one_pass._layouts.values()] == [3, 1]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one.loss, other.loss)
        torch.testing.assert_close(one.score, other.score, equal_nan=True)


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("prior", [None, PRIOR], ids=["no prior", "prior"])
def test_models_that_clients_choose_are_scored_for_several_stacks_in_one_pass_where_they_fit(prior, fits, monkeypatch):
    train, test = splits = [replace(s, log_prior=prior) for s in (DATA.train, DATA.test)]
    each = stacked().bytes_per_sample(DATA.train) * 3 * (DATA.train.longest + DATA.test.longest)
    monkeypatch.setattr(one_pass, "SMALL", (8 if fits else 7) * each)  # of four clients, twice
    engine = stacked()
    for seed in range(3):
        torch.manual_seed(seed)
        own = tree_map(torch.randn_like, replicas(mlp, models=3))
        shared = tree_map(lambda t: -t[:1, :2], own)
        own = tree_map(lambda t, at=seed: t.index_fill(1, torch.tensor([at]), torch.nan), own)  # nobody can choose this one
        found = engine.chosen_scores([own, shared], train, test)
        assert len(engine._one_pass._recordings._recordings) == (1 if fits else min(2 * seed, 2))
        for params, models, (choice, scores) in zip((own, shared), (3, 2), found, strict=True):
            for i in range(4):
                losses, on_test = ([by_hand(params, of, prior, i, s) for s in range(models)] for of in splits)
                best = int(np.nanargmin([loss for loss, _ in losses]))
                assert choice[i] == best
                assert (scores.loss[i].item(), scores.score[i].item()) == pytest.approx(on_test[best], rel=1e-5)


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize("prior", [None, PRIOR], ids=["no prior", "prior"])
def test_mixtures_by_losses_are_scored_for_several_stacks_in_one_pass_where_they_fit(prior, fits, monkeypatch):
    train, test = splits = [replace(s, log_prior=prior) for s in (DATA.train, DATA.test)]
    each = stacked().bytes_per_sample(DATA.train) * 3 * (DATA.train.longest + DATA.test.longest)
    monkeypatch.setattr(one_pass, "SMALL", (8 if fits else 7) * each)  # of four clients, twice
    engine = stacked()
    for temperature in (0.5, 0.5, 2.0):
        own = tree_map(torch.randn_like, replicas(mlp, models=3))
        shared = tree_map(lambda t: -t[:1, :2], own)
        found = engine.weighed_scores([own, shared], train, test, temperature)
        for params, models, of in zip((own, shared), (3, 2), found, strict=True):
            for i in range(4):
                losses, on_test = (torch.tensor([by_hand(params, s, prior, i, k) for k in range(models)]) for s in splits)
                weights = (-losses[:, 0] / temperature).exp()
                torch.testing.assert_close(of.weights[i], weights / weights.sum(), rtol=1e-4, atol=1e-6)
                logits = torch.stack([outputs_by_hand(params, test, prior, i, k) for k in range(models)])
                mixed = (of.weights[i][:, None, None] * logits.softmax(-1)).sum(0)
                y = test.of(i)[1]
                assert of.mixed.loss[i].item() == pytest.approx(F.nll_loss(mixed.log(), y).item(), rel=1e-4)
                assert of.mixed.score[i].item() == pytest.approx((mixed.argmax(1) == y).float().mean().item())
                assert of.choice[i] == losses[:, 0].argmin()
                assert of.single[i].item() == pytest.approx(on_test[of.choice[i], 1].item())
    assert len(engine._one_pass._recordings._recordings) == 2 if fits else True  # one for each temperature


def test_a_last_client_without_samples_kept_apart_is_scored():
    """Of one training sample none is kept apart, and no row comes after it that could stand for one."""
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    parts = [(x[:n], np.arange(n) % 3) for n in (9, 1)]
    data = fedfew.Federation.from_arrays(parts, parts, classes=3)
    settings = {"rounds": 2, "batch_size": 3, "check_share": 0.3, "device": "cpu"}
    one, other = (fedfew.train(data, "linear", fedfew.FedFew(models=2), engine=e, **settings) for e in ("stacked", "sequential"))
    np.testing.assert_allclose(one.history.losses, other.history.losses, rtol=1e-5)
