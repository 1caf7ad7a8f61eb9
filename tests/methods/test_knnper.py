"""kNN-Per: the votes of the nearest samples by hand, the limits, and what stays at the client."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import nn

import fedfew
from fedfew.methods import FedAvg, KNNPer
from fedfew.models.memory import EMPTY, KEYS, LABELS, nearest, with_memory
from tests.methods.small import CLASSES, FEATURES, SIZES, federation, train


def test_votes_by_hand() -> None:
    """In two dimensions, σ = 1: distances² 1, 4 and 9 from (0, 0); the third of three neighbours is empty or too far."""
    keys = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
    labels = torch.tensor([2, 0, 2, EMPTY])
    a, b = math.exp(-1 / 2), math.exp(-4 / 2)
    found = nearest(torch.zeros(1, 2), keys, labels, 3, neighbours=2, scale=1.0)
    torch.testing.assert_close(found, torch.tensor([[b, 0.0, a]]) / (a + b))
    c = math.exp(-9 / 2)
    found = nearest(torch.zeros(1, 2), keys, labels, 3, neighbours=4, scale=1.0)
    torch.testing.assert_close(found, torch.tensor([[b, 0.0, a + c]]) / (a + b + c))
    assert nearest(torch.zeros(1, 2), keys, torch.full((4,), EMPTY), 3, 2, 1.0).tolist() == [[0.0, 0.0, 0.0]]


def test_a_model_with_memory_mixes_probabilities_in_evaluation_alone() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    x = torch.randn(7, FEATURES)
    logits, features = plain(x).detach(), plain[:2](x).detach()
    module = with_memory(plain, capacity=9, neighbours=1, share=0.3, scale=1.0).eval()
    torch.testing.assert_close(module(x).exp(), logits.softmax(1))  # it is empty
    y = torch.arange(7) % CLASSES
    module.load_state_dict(
        {KEYS: nn.functional.pad(features, (0, 0, 0, 2)), LABELS: torch.cat([y, torch.full((2,), EMPTY)])}, strict=False
    )
    expected = 0.3 * nn.functional.one_hot(y, CLASSES) + 0.7 * logits.softmax(1)  # each sample's neighbour is itself
    torch.testing.assert_close(module(x).exp(), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x).exp(), expected)
    torch.testing.assert_close(module.train()(x).detach(), logits)


def test_without_neighbours_it_is_fedavg() -> None:
    knn, avg = train(KNNPer(lam=0.0)), train(FedAvg())
    for loss in ("served_loss", "adapted_loss"):
        torch.testing.assert_close(*(torch.from_numpy(run.history.last(loss)) for run in (knn, avg)), equal_nan=True)
    assert (knn.history.bytes_down == avg.history.bytes_down).all()  # the memory does not travel
    assert (knn.history.bytes_up == avg.history.bytes_up).all()


def test_the_memory_is_of_the_clients_own_samples_under_the_model_as_received() -> None:
    before, run = (train(FedAvg(), rounds=1, participation=1.0), train(KNNPer(capacity=10), rounds=2, participation=1.0))
    model = before.models[0].state_dict()
    for client, size in enumerate(SIZES):
        x, y = federation().train.of(client)
        kept = [i * size // 10 for i in range(10)] if size > 10 else list(range(size))
        features = torch.tanh(x[kept] @ model["0.weight"].T + model["0.bias"])
        torch.testing.assert_close(run.state.own[KEYS][client, : len(kept)], features, rtol=1e-5, atol=1e-6)
        assert run.state.own[LABELS][client].tolist() == y[kept].tolist() + [EMPTY] * (10 - len(kept))
    assert run.models == []


def test_samples_sorted_by_class_are_remembered_of_every_class() -> None:
    x, y = torch.randn(12, FEATURES), torch.arange(12) // 4
    run = train(KNNPer(capacity=3), fedfew.Federation.from_arrays([(x, y)], [(x, y)]), rounds=1)
    assert run.state.own[LABELS].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_label_prior_counts_once(engine: str) -> None:
    """λ·p_kNN + (1 − λ)·softmax(z + log π): the neighbours have been drawn with the client's frequencies already."""
    run = train(KNNPer(lam=0.4, neighbours=3), participation=1.0, label_prior="client", rounds=2, engine=engine)
    state = {name: t[0] for name, t in run.state.server.items()}
    for client in range(len(SIZES)):
        (x, y), (_, labels) = federation().test.of(client), federation().train.of(client)
        prior = ((torch.bincount(labels, minlength=CLASSES) + 1.0) / (len(labels) + CLASSES)).log()
        z = torch.tanh(x @ state["0.weight"].T + state["0.bias"])
        votes = nearest(z, run.state.own[KEYS][client], run.state.own[LABELS][client], CLASSES, 3, 0.1)
        p = 0.4 * votes + 0.6 * (z @ state["2.weight"].T + state["2.bias"] + prior).softmax(1)
        expected = -p.clamp_min(torch.finfo(p.dtype).tiny).log()[torch.arange(len(y)), y].mean()
        torch.testing.assert_close(float(run.history.last("served_loss")[client]), float(expected), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(run.model_of(client)(x).softmax(1), p, rtol=1e-4, atol=1e-6)


def test_a_run_with_memories_is_saved_and_loaded(tmp_path) -> None:
    run = train(KNNPer(), folder=tmp_path)
    x, _ = federation().test.of(1)
    again = fedfew.load(tmp_path, lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    torch.testing.assert_close(again.model_of(1)(x), run.model_of(1)(x))


def test_targets_that_are_no_classes_are_refused() -> None:
    x = torch.randn(6, FEATURES)
    data = fedfew.Federation.from_arrays([(x, x[:, 0])], [(x, x[:, 0])], task="regression")
    with pytest.raises(ValueError, match="knnper works with classes alone"):
        train(KNNPer(), data)
