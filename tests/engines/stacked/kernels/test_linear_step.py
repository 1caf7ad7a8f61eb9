"""Linear layers moved on the way back: the kernel and plain operations, on the GPU where there is one, else in Triton's
interpreter. Whole numbers, so that TF32 and the order of sums make no difference."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from fedfew.engines.stacked.kernels import linear_step as module_under_test
from fedfew.engines.stacked.kernels.linear_step import linear_step, suits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("exact")


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(7, 70, 150), (64, 64, 64), (1, 130, 9), (50, 3, 65)])
def test_back_and_a_step_at_once(kernel, rows, outputs, inputs, monkeypatch):
    monkeypatch.setattr(module_under_test, "usable", lambda device: kernel)
    draw = torch.Generator().manual_seed(0)
    weight, g, x = (
        torch.randint(-4, 5, size, generator=draw).float().to(DEVICE)
        for size in ((3, outputs, inputs), (3, rows, outputs), (3, rows, inputs))
    )
    back, moved = g @ weight, weight - 0.5 * g.mT @ x
    assert not torch.equal(g @ moved, back)
    before = weight._version
    found = linear_step(weight, g.mT.contiguous().mT, x, -0.5)
    assert torch.equal(found, back), "the gradient is that of the weights as they were"
    assert torch.equal(weight, moved)
    assert weight._version > before


def test_few_rows_and_more_than_a_few_outputs():
    assert suits(64, 33, 10)
    assert not suits(65, 33, 10)
    assert not suits(64, 32, 10)
    assert not suits(64, 2**16, 2**15)
