"""What only the stacked engine does."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedfew
from fedfew import random_streams
from fedfew.engines import LocalTraining, Sequential, Stacked
from fedfew.engines.stacked import batches
from fedfew.engines.stacked.batch_scores import BatchScores
from fedfew.stack import leaves, tree_map
from tests.engines.small import FEDERATION, assert_close, mlp, run


def test_samples_gathered_at_once_or_batch_by_batch_are_the_same(monkeypatch):
    federation = fedfew.data.load("digits", partition="dirichlet:0.5", clients=4, sample=300)

    def trained() -> list[torch.Tensor]:
        run = fedfew.train(federation, method=fedfew.FedFew(models=2), rounds=3, batch_size=7, lr=0.1, engine="stacked")
        return leaves(run.state.server)

    at_once = trained()
    monkeypatch.setattr(batches, "AT_ONCE", 0)
    for a, b in zip(at_once, trained(), strict=True):
        assert torch.equal(a, b)


def test_memory_estimate_grows_with_the_model_and_the_batch():
    def estimate(hidden, batch):
        module = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        return Stacked(module, LocalTraining(lr=0.1, batch_size=batch), 0).bytes_per_replica(FEDERATION.train)

    assert estimate(100, 8) > 2 * estimate(10, 8)
    assert estimate(100, 32) > estimate(100, 8) > 5 * 4 * (5 * 100 + 100 + 300 + 3)


def test_memory_estimate_leaves_out_what_is_frozen():
    """Trained are the first and the last layer, 903 numbers; the frozen 10,000 of the second would count twice for the batch."""
    module = nn.Sequential(nn.Linear(5, 100), nn.Linear(100, 100), nn.Linear(100, 3))
    module[1].requires_grad_(False)
    estimate = Stacked(module, LocalTraining(lr=0.1, batch_size=8), 0).bytes_per_replica(FEDERATION.train)
    assert 5 * 4 * 903 < estimate < 5 * 4 * 903 + 2 * 4 * 10_000


@pytest.mark.parametrize("models", [1, 3])
def test_scores_and_gradients_are_the_same_however_few_clients_fit_in_memory(models, monkeypatch):
    engine = Stacked(mlp(), LocalTraining(lr=0.1, batch_size=8), 0)
    params = tree_map(lambda t: torch.randn(len(FEDERATION), models, *t.shape), dict(mlp().state_dict()))
    together = engine.score(params, FEDERATION.train), engine.gradient(params, FEDERATION.train)
    seen = []
    original = BatchScores.of_clients
    monkeypatch.setattr(BatchScores, "of_clients", lambda self, p, s, w: seen.append(len(s.count)) or original(self, p, s, w))
    monkeypatch.setattr("fedfew.engines.memory.ON_A_CPU", 1)
    apart = engine.score(params, FEDERATION.train), engine.gradient(params, FEDERATION.train)
    assert seen == [1] * len(FEDERATION)
    for x, y in zip((together[0].loss, together[0].score), (apart[0].loss, apart[0].score), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
    for x, y in zip(leaves(together[1][0]), leaves(apart[1][0]), strict=True):
        assert torch.allclose(x, y, atol=1e-6)


class Double(nn.Linear):
    def __init__(self):
        super().__init__(5, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x.double())


@pytest.mark.parametrize(
    "training", [{}, {"mixup": 0.4}, {"schedule": "cosine", "rounds": 7}, {"schedule": "cosine", "rounds": 7, "momentum": 0.5}]
)
def test_in_double_precision_nothing_is_rounded_to_single(training):
    """Neither a sample's weight, nor a share of mixup, nor the learning rate: single precision is 1e-8 off."""
    samples = replace(FEDERATION.train, class_weights=torch.rand(len(FEDERATION), 3))
    data = replace(FEDERATION, train=samples)
    (found, losses), (plain, plain_losses) = (run(cls, Double, epochs=2, data=data, **training) for cls in (Stacked, Sequential))
    assert_close(found, plain, 1e-13)
    torch.testing.assert_close(losses, plain_losses, rtol=1e-13, atol=1e-13)
    gradients = [
        cls(Double(), LocalTraining(lr=0.1, batch_size=8), 0).gradient(plain, FEDERATION.train) for cls in (Stacked, Sequential)
    ]
    assert_close(*(gradient for gradient, _ in gradients), 1e-13)
    torch.testing.assert_close(*(loss for _, loss in gradients), rtol=1e-13, atol=1e-13)


def test_what_fills_up_a_batch_is_a_sample_of_that_batch():
    """The loss of another may be infinite, and 0 · ∞ is no number."""
    samples = FEDERATION.train
    rank, sizes = samples.largest_first
    order = random_streams.permutations(torch.arange(len(sizes))[:, None], samples.count, samples.longest)[rank]
    filled = 0
    for batch in batches.batches_of(samples, rank, sizes, order, 8, {"weight": torch.zeros(1)}):
        for x, weight in zip(batch.x[:, 0], batch.weight[:, 0], strict=True):
            own, fills = x[weight > 0].tolist(), x[weight == 0].tolist()
            assert all(sample in own for sample in fills)
            filled += len(fills)
    assert filled == 3  # of 8 − 7 places of three clients
