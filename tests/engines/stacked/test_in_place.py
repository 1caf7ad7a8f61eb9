"""Operations that write over what nobody reads any more: the same results, arguments untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedfew.engines.stacked.in_place import write_in_place
from fedfew.engines.stacked.traced import drop_unused, recorded

A = torch.tensor([[1.0, -2.0], [3.0, 0.5]])


def rewritten(function: Callable[..., Any], *tensors: Tensor) -> tuple[Callable[..., Any], list[str]]:
    recording = recorded(function, tensors)
    write_in_place(recording.graph)
    drop_unused(recording.graph)
    called = [str(node.target) for node in recording.graph.nodes if node.op == "call_function"]
    return recording.forward, [name.split(".")[1] for name in called]


@pytest.mark.parametrize(
    ("function", "operations"),
    [
        (lambda a: (a @ a).relu().exp(), ["mm", "relu_", "exp_"]),
        (lambda a: a.relu().exp(), ["relu", "exp_"]),  # the argument belongs to the caller
        (lambda a: 1.0 + a.exp(), ["exp", "add_"]),
        (lambda a: a * a.exp(), ["exp", "mul_"]),  # either factor
        (lambda a: a - a.exp(), ["exp", "sub"]),  # not of a difference
        (lambda a: (b := a.exp(), b + 1), ["exp", "add"]),  # it is returned
        (lambda a: (b := a.exp()).amax(1, keepdim=True) + b, ["exp", "amax", "add_"]),  # the last to read it
        (lambda a: (b := a.exp()).log() + b, ["exp", "log", "add_"]),  # log is not the last
        (lambda a: (b := a.exp())[:, :1] + b, ["exp", "slice", "add"]),  # a part of it is read at the same time
        (lambda a: (a @ a).T.exp(), ["mm", "permute", "exp_"]),
        (lambda a: (a @ a)[None].squeeze(0).exp(), ["mm", "unsqueeze", "squeeze", "exp"]),  # a view that is not known
        (lambda a: (a @ a)[None].exp(), ["mm", "unsqueeze", "exp_"]),
        (
            lambda a: (b := a.exp()).scatter_add(1, torch.zeros_like(b).long(), b),
            ["exp", "zeros_like", "_to_copy", "scatter_add"],
        ),
        (lambda a: a.exp().double() + a, ["exp", "_to_copy", "add_"]),  # a copy is written over, too
    ],
)
def test_only_what_is_read_no_more_is_written_over(function: Callable[[Tensor], Any], operations: list[str]):
    replay, called = rewritten(function, A)
    assert called == operations
    before = A.clone()
    torch.testing.assert_close(replay(A), function(A), rtol=0, atol=0)
    assert torch.equal(before, A)


def test_what_is_scattered_into_zeros_and_added_is_scattered_at_once():
    at = torch.tensor([[1], [0]])

    def function(a: Tensor) -> Tensor:
        return a.exp() + a.new_zeros(2, 2).scatter_add(1, at, a[:, :1])

    replay, called = rewritten(function, A)
    assert called == ["exp", "slice", "scatter_add_"]
    torch.testing.assert_close(replay(A), function(A), rtol=0, atol=0)


def test_what_was_written_into_an_argument_is_the_callers():
    replay, called = rewritten(lambda a: a.add_(1).exp(), A.clone())
    assert called == ["add_", "exp"]
    a = A.clone()
    replay(a)
    assert torch.equal(a, A + 1)


def test_what_lies_otherwise_in_memory_is_not_written_over():
    """A product lies like its first factor; written over the second it would lie otherwise, and could not be viewed like this."""
    a = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)

    def function(a: Tensor, b: Tensor) -> Tensor:
        return (a * b.exp()).permute(0, 2, 3, 1).view(-1)

    replay, called = rewritten(function, a, torch.randn(2, 3, 4, 5))
    assert "mul" in called
    b = torch.randn(2, 3, 4, 5)
    assert torch.equal(replay(a, b), function(a, b))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, at: (s := a.exp(), p := a.new_zeros(2, 2).scatter_add(1, at, s), t := s * 2, p + a.neg(), t)[3:],
        lambda a, at: a.exp() + a.new_zeros(2, 1).scatter_add(1, at[:, :1] * 0, a[:, :1]),  # of another shape
        lambda a, at: a.double().exp() + a.new_zeros(2, 2).scatter_add(1, at, a),  # and of another type
    ],
)
def test_what_is_scattered_later_is_read_as_it_was(function: Callable[[Tensor, Tensor], Any]):
    """Between the two operations that become one, what is scattered may be written over."""
    at = torch.tensor([[1, 0], [0, 1]])
    replay, _ = rewritten(function, A, at)
    torch.testing.assert_close(replay(A, at), function(A, at), rtol=0, atol=0)
