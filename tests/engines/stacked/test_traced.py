"""Recordings: the same bits with fewer operations."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.stacked import traced
from fedfew.engines.stacked.traced import Traced, recorded
from fedfew.federation import Federation
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import leaves, tree_map
from tests.engines.small import FEDERATION, images, mlp, run
from tests.helpers import linear


def operations(recording) -> list[str]:
    return [str(node.target) for node in recording.graph.nodes if node.op == "call_function"]


def test_a_factor_of_ones_is_left_out_where_the_product_has_the_others_shape():
    def function(x: Tensor) -> Tensor:
        ones = torch.ones_like(x[:, 0])
        return (ones[:, None].expand(3, 2) * x).exp()

    x = torch.tensor([[1.0, -2.0], [0.5, 4.0], [0.0, 3.0]])
    recording = recorded(function, (x,))
    assert operations(recording) == ["aten.exp.default"]
    assert torch.equal(recording(x), x.exp())


def test_it_stays_where_it_makes_the_product_larger_or_another_type():
    x = torch.tensor([1.0, 2.0])
    wider = recorded(lambda t: torch.ones_like(t)[:, None] * t, (x,))
    assert wider(x).tolist() == [[1.0, 2.0], [1.0, 2.0]]
    exact = recorded(lambda t: torch.ones_like(t, dtype=torch.float64) * t, (x,))
    assert exact(x).dtype == torch.float64


def test_a_choice_between_two_that_are_the_same_is_none():
    """As in an embedding whose padding is not trained: the two differ in what flows back, which a recording has spelt out."""

    def gradient(x: Tensor) -> Tensor:
        leaf = x.detach().requires_grad_()
        squares = leaf * leaf
        return torch.autograd.grad(torch.where(leaf > 1, squares.detach(), squares).exp().sum(), leaf)[0]

    x = torch.tensor([0.5, 2.0])
    recording = recorded(gradient, (x,))
    assert operations(recording).count("aten.where.self") == 1  # of the gradient
    assert recording(x).tolist() == gradient(x).tolist() == [pytest.approx(2 * 0.5 * math.exp(0.25)), 0.0]
    wider = recorded(lambda t: torch.where(t[:, None] > 1, t, t), (x,))
    assert wider(x).tolist() == [[0.5, 2.0], [0.5, 2.0]]


def test_it_stays_where_something_is_written():
    def function(x: Tensor) -> Tensor:
        copy = torch.ones_like(x) * x
        x.add_(1)
        return copy

    x = torch.tensor([1.0, 2.0])
    recording = recorded(function, (x,))
    assert x.tolist() == [1.0, 2.0]
    assert recording(x).tolist() == [1.0, 2.0]
    assert x.tolist() == [2.0, 3.0]


def test_a_tensor_that_lies_otherwise_in_memory_has_a_recording_of_its_own():
    """What was a view of the first would be an error for the second."""
    traced, x = Traced(), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert traced("flat", lambda t: t.reshape(-1), x).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert traced("flat", lambda t: t.reshape(-1), x.T).tolist() == [1.0, 3.0, 2.0, 4.0]


def test_a_view_that_lies_otherwise_in_memory_stays():
    """Of one image, ``view_as`` changes the first stride, which is never used, but by which convolutions choose a layout."""
    x = torch.randn(1, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(3, 4, 3, 3)
    assert x.view_as(x).stride() != x.stride()
    recording = recorded(lambda x, weight: nn.functional.conv2d(x.view_as(x), weight).flatten(1), (x, weight))
    torch.testing.assert_close(recording(x, weight), nn.functional.conv2d(x, weight).flatten(1))
    assert "aten.view.default" not in operations(recorded(lambda x: x.view_as(x) + 1, (torch.randn(2, 4),)))


def test_recordings_call_torch_directly_and_do_the_same():
    """An operation that torch has as a function, one that it has as a method, and one that only torch.ops has."""

    def work(x, y):
        z = torch.relu(x.view(4, 3)).sum(1, keepdim=True) * 2 + y
        return torch.ops.aten.threshold_backward.default(z, z, 0.5)

    x, y = torch.randn(3, 4), torch.randn(4, 1)
    recording = traced.recorded(work, (x, y))
    called = {traced._direct(node.target) for node in recording.graph.nodes if node.op == "call_function"}
    assert {torch.relu, torch.sum, torch.Tensor.view, torch.ops.aten.threshold_backward.default} <= called
    assert torch.equal(recording(x, y), work(x, y))


def test_recordings_are_bounded_and_reused(monkeypatch):
    monkeypatch.setattr(traced, "KEPT", 3)
    recorder = traced.Traced()
    calls = []

    def double(x):
        calls.append(len(x))
        return 2 * x

    def times(n, repeats):
        calls.clear()
        for _ in range(repeats):
            assert torch.equal(recorder("double", double, torch.ones(n)), torch.full((n,), 2.0))
        return len(calls)

    assert times(1, 10) == 1  # recorded, then replayed
    assert times(1, 5) == 0
    assert [times(n, 3) for n in (2, 3, 4)] == [1, 1, 1]
    assert times(4, 5) == 0
    assert times(1, 5) == 1  # dropped for a newer one, recorded again


def test_nothing_is_recorded_twice_where_all_clients_differ_in_size(monkeypatch):
    """150 numbers of clients in an epoch: kept all of them, or every step would be recorded anew, for ever."""
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 5, generator=draw), torch.randint(3, (n,), generator=draw)) for n in range(1, 151)]
    many = Federation.from_arrays(clients, clients[:1] * 150, classes=3)
    recordings = []
    monkeypatch.setattr(traced, "recorded", lambda *given: recordings.append(given) or recorded(*given))
    engine = Stacked(linear(), LocalTraining(lr=0.1, batch_size=1), 0)
    params = tree_map(lambda t: t.expand(150, 1, *t.shape), dict(engine.module.state_dict()))
    for round in range(2):
        engine.train(LocalEpochs(params, many.train, many.ids, round, cross_entropy, {}, 1))
        assert len(recordings) == 150


IMAGES = images((13, 22, 7), shape=(1, 8, 8))


def conv():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


@pytest.mark.parametrize(("factory", "data"), [(mlp, FEDERATION), (conv, IMAGES)])
def test_a_replay_gives_the_same_bits(factory, data, monkeypatch):
    replayed, losses = run(Stacked, factory, epochs=2, momentum=0.9, data=data)
    monkeypatch.setattr(traced.Traced, "__call__", lambda self, name, function, *tensors: function(*tensors))
    as_written, same_losses = run(Stacked, factory, epochs=2, momentum=0.9, data=data)
    for x, y in zip(leaves(replayed), leaves(as_written), strict=True):
        assert torch.equal(x, y)
    assert torch.equal(losses, same_losses)


def test_operations_are_those_that_compute():
    traced = Traced()
    assert traced.operations == 0
    traced("one", lambda x: x.t().reshape(6).relu(), torch.ones(2, 3))
    assert traced.operations == 2  # the copy that reshaping needs, and ReLU
    traced("more", lambda x: (x.view(6)[None] * 3).exp_().split(2, 1), torch.ones(2, 3))
    traced("fewer", lambda x: x.exp(), torch.ones(2, 3))
    assert traced.operations == 2
    traced("most", lambda x: (x @ x.t()).relu().sum(), torch.ones(2, 3))
    assert traced.operations == 3
