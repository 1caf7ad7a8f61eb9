"""Recordings as programs of PyTorch's interpreter: the same results as the recorded functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedfew.engines.stacked.script import scripted
from fedfew.engines.stacked.traced import recorded


def program(function: Callable[..., Any], *tensors: Tensor) -> Callable[..., Any] | None:
    recording = recorded(function, tensors)
    return scripted(recording.graph, recording.constants)


A, B = torch.arange(12.0).reshape(3, 4) - 5, torch.tensor([2, 0, 1])
FIXED = torch.tensor([3.0, 1.0, 4.0, 1.0])

CASES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "one tensor": lambda a, b: (a * 2 + 0.5).relu(),
    "a list and a tensor": lambda a, b: ([a + 1, a - 1], b.double() / 3),
    "parts of a list": lambda a, b: torch.cat(a.split([1, 3], 1)[::-1], 1),
    "several results, one unused": lambda a, b: a.max(1).values + 1,
    "a list of optional tensors": lambda a, b: a[:, b],
    "a constant": lambda a, b: a @ FIXED + FIXED.sum(),
    "the same constant twice": lambda a, b: FIXED * FIXED + a,
    "a type and a format": lambda a, b: a.T.clone(memory_format=torch.contiguous_format).to(torch.int64),
    "a nested result": lambda a, b: {"x": (a.exp(), [b])},
    "a number in place of the second tensor": lambda a, b: b // 2 * 3 - 1,
    "a number that vmap makes a tensor of": lambda a, b: vmap(lambda row: row.sum() * 2)(a),
    "numbers that are not finite": lambda a, b: (a.masked_fill(a > 0, -torch.inf), a * torch.nan),
}


@pytest.mark.parametrize("case", CASES)
def test_a_program_does_what_was_recorded(case: str):
    found, expected = program(CASES[case], A, B), CASES[case](A, B)
    assert found is not None
    torch.testing.assert_close(found(A, B), expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found(A + 1, B), CASES[case](A + 1, B), rtol=0, atol=0, equal_nan=True)


def test_a_program_writes_into_its_arguments_as_the_recording_does():
    found, a = program(lambda a: a.add_(1).sum(), A), A.clone()
    assert found is not None
    assert float(found(a)) == float(A.sum() + 12)
    assert torch.equal(a, A + 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (a, 3),  # not a tensor
        lambda a: a.view(torch.int32),  # an operation that the interpreter does not know
        lambda a: torch.ops.aten.add.Tensor(1, a),  # a number in place of the tensor that an operation is of
    ],
)
def test_what_no_program_can_do_is_left_to_python(function: Callable[[Tensor], Any]):
    assert program(function, A) is None


def test_the_interpreters_own_settings_stay_as_they_were():
    found = program(lambda a: a + 1, A)
    assert found is not None
    for before in (True, False):
        torch._C._set_graph_executor_optimize(before)
        found(A)
        assert torch._C._get_graph_executor_optimize() is before
    torch._C._set_graph_executor_optimize(True)
