"""Recorded steps of one replica: the same as plain ones, also where a module cannot be recorded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedfew.engines import LocalTraining, Sequential, Threaded
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import leaves
from tests.engines.small import Normalised, images, replicas

DATA = images()
EXACT = {"rtol": 1e-9, "atol": 1e-12}  # of float64


class ByValue(Normalised):
    """What it does depends on a number that it computes, after BatchNorm has counted the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if x.mean().item() > 1.5 else 1)


class ByMask(Normalised):
    """How many rows it takes depends on their values."""

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        large = x.flatten(1).mean(1) > 1.5
        return outputs + outputs[large].sum() / 10


class ByPosition(Normalised):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, torch.tensor([1, 2, 0])]


def train(cls, module, objective=cross_entropy, epochs=1, **training):
    engine = cls(module(), LocalTraining(**({"lr": 0.05, "batch_size": 5} | training)), seed=3)
    return engine, engine.train(LocalEpochs(replicas(module, len(DATA)), DATA.train, DATA.ids, 1, objective, {}, epochs))


@pytest.mark.parametrize("training", [{}, {"momentum": 0.5}, {"clip_gradient": 1.0}, {"schedule": "cosine", "rounds": 4}])
@pytest.mark.parametrize("module", [Normalised, ByPosition, ByValue, ByMask])
def test_steps_are_those_of_plain_training(module, training):
    _, (plain, losses) = train(Sequential, module, **training)
    engine, (found, found_losses) = train(Threaded, module, **training)
    torch.testing.assert_close(found_losses, losses, **EXACT)
    for mine, want in zip(leaves(found), leaves(plain), strict=True):
        torch.testing.assert_close(mine, want, **EXACT)
    refused = [bool(worker._recorded._refused) for worker in engine._workers if worker._recorded._recordings._recordings]
    assert not any(refused)
    assert bool(refused) == (module in (Normalised, ByPosition))


def test_a_step_is_recorded_once_per_shape():
    """Of four clients × two models; batches of 5 and of what is left: 3, 2, 2 and 2."""
    called = []

    def counting(loss, params, context):
        called.append(len(loss.labels))
        return cross_entropy(loss, params, context)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(Threaded, Normalised, counting)
    finally:
        torch.set_num_threads(before)
    assert sorted(called) == [2, 3, 5]


def test_linear_layers_are_moved_without_their_gradient():
    def two_layers():
        return nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 3))

    engine, _ = train(Threaded, two_layers)
    ((recording, _), *_) = engine._workers[0]._recorded._recordings._recordings.values()
    called = [str(node.target) for node in recording.graph.nodes]
    assert called.count("aten.addmm_.default") == 2
    assert "aten.mm.default" in called, "the gradient of the hidden layer's output"


class Added(nn.Module):
    """Two parameters that are added to a batch; of one sample their gradients are the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.zeros(1, 72, dtype=torch.float64)) for _ in range(2))
        self.out = nn.Linear(72, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1).double() + self.first + self.second)


def test_gradients_that_are_one_tensor_are_clipped_once():
    (_, (plain, _)), (_, (found, _)) = (train(cls, Added, batch_size=1, clip_gradient=0.1) for cls in (Sequential, Threaded))
    for mine, want in zip(leaves(found), leaves(plain), strict=True):
        torch.testing.assert_close(mine, want, **EXACT)
