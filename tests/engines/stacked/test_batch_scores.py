"""Scoring batch by batch: the same as one replica after the other, however large a batch is, recorded or not."""

from dataclasses import replace

import pytest
import torch

from fedfew.config import LocalTraining
from fedfew.engines import Sequential, Stacked
from fedfew.engines.stacked import batch_scores
from fedfew.stack import tree_map
from tests.engines.small import mlp, replicas
from tests.helpers import federation

DATA = federation(sizes=(13, 22, 7, 27))
PRIOR = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
TRAINING = LocalTraining(lr=0.1, batch_size=8)


@pytest.mark.parametrize("prior", [None, PRIOR], ids=["no prior", "prior"])
@pytest.mark.parametrize("clients", [1, 4], ids=["shared", "own"])
def test_single_models_and_their_mixture(clients, prior, monkeypatch):
    monkeypatch.setattr(batch_scores, "MOST", 10)
    monkeypatch.setattr(batch_scores, "EVALUATION_BATCH", 10)
    samples = replace(DATA.test, log_prior=prior)
    scorer = batch_scores.BatchScores(Stacked(mlp(), TRAINING, 0))
    score = scorer.of_everyone if clients == 1 else scorer.of_clients
    scorer.engine.module.eval()
    other = Sequential(mlp(), TRAINING, 0)
    weights = torch.rand(4, 3).softmax(1)
    for _ in range(3):  # plain, recorded, replayed
        params = tree_map(torch.randn_like, tree_map(lambda t: t[:clients], replicas(mlp, models=3)))
        mixed, single = other.score_mixture(params, samples, weights)
        with torch.no_grad():
            alone, every = score(params, samples), score(params, samples, weights.log())
        for name in ("loss", "score"):
            expected = torch.cat([getattr(single, name), getattr(mixed, name)], 1)
            torch.testing.assert_close(getattr(every, name), expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(getattr(alone, name), expected[:, :3], rtol=1e-5, atol=1e-6)
    assert scorer._recordings._recordings
