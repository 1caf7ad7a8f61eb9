"""Recordings: the same bits with fewer operations."""

import math

import pytest
import torch
from torch import Tensor

from fedfew.engines.stacked.traced import Traced, recorded


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
