"""What a step reads and leaves by kernels is the same as by plain operations: on the GPU where there is one, else interpreted."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
import torch

pytest.importorskip("triton")

from fedfew.engines.stacked import space as module_under_test
from fedfew.engines.stacked.space import Space
from fedfew.federation import Samples
from fedfew.local import cross_entropy
from tests.engines.small import images
from tests.engines.stacked.test_captured import assert_same, both

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLIENTS, MODELS, STEPS, B, ROWS = 3, 2, 4, 5, 30


def filled():
    """Buffers in which no two numbers are alike."""
    draw = torch.Generator().manual_seed(0)

    def numbers(*size):
        return torch.rand(size, generator=draw).to(DEVICE)

    def whole(most, *size, dtype=torch.int64):
        return torch.randint(0, most, size, generator=draw, dtype=dtype).to(DEVICE)

    some = torch.zeros(CLIENTS, dtype=torch.int64, device=DEVICE)
    samples = Samples(numbers(ROWS, 2), whole(100, ROWS), some, some + 1, 1)
    every = (CLIENTS, MODELS, STEPS * B)
    return Space(
        clients=CLIENTS,
        steps=STEPS,
        samples=samples,
        weights={},
        context={},
        state={},
        lr=torch.zeros(()),
        rows=whole(ROWS, *every),
        weight=numbers(CLIENTS, STEPS * B),
        share=numbers(CLIENTS, STEPS),
        dropout=whole(9, CLIENTS, MODELS),
        moves=whole(9, *every, 3, dtype=torch.int32),
        mixup=numbers(CLIENTS, MODELS, STEPS),
        importance=numbers(*every),
        step=torch.tensor([2], device=DEVICE),
        within=torch.arange(B, device=DEVICE),
    )


def by(kernel, monkeypatch, function):
    monkeypatch.setattr(module_under_test, "usable", lambda device: kernel)
    return function()


@pytest.mark.parametrize("shared_features", [False, True])
@pytest.mark.parametrize(("moved", "weighted"), [(False, False), (True, True)])
@pytest.mark.parametrize("clients", [1, CLIENTS])
def test_a_step_reads_its_part_of_every_buffer(clients, moved, weighted, shared_features, monkeypatch):
    space = filled()
    if shared_features:
        space.samples = replace(space.samples, row=torch.randperm(ROWS).to(DEVICE))
    got, want = (by(kernel, monkeypatch, lambda: space.read(clients, moved, weighted)) for kernel in (True, False))
    assert want.at.shape == (clients * MODELS, B)
    assert (want.moves is not None, want.importance is not None) == (moved, weighted)
    for a, b in zip(astuple(got), astuple(want), strict=True):
        assert a is b is None or (torch.equal(a, b) and a.dtype == b.dtype)
    row = space.rows[0, 1, 2 * B + 3]  # by hand: replica 1, the fourth sample of its third step
    assert want.y[1, 3] == space.samples.y[row]
    assert want.at[1, 3] == (space.samples.row[row] if shared_features else row)
    assert want.weight[1, 3] == space.weight[0, 2 * B + 3]
    assert want.share[1] == space.share[0, 2]


@pytest.mark.parametrize("more", [(), (3,)])
@pytest.mark.parametrize("block", [4, 1024])
def test_losses_are_added_and_the_step_is_counted(more, block, monkeypatch):
    monkeypatch.setattr(module_under_test.batch, "BLOCK", block)
    reported, share = torch.rand(4, *more, device=DEVICE), torch.rand(4, device=DEVICE)
    ends = []
    for kernel in (True, False):
        space = filled()
        for _ in range(2):
            by(kernel, monkeypatch, lambda space=space: space.report(cross_entropy, reported, share))
        assert space.step.tolist() == [4]
        ends.append(space.mean_loss[cross_entropy])
    torch.testing.assert_close(*ends)
    assert ends[0].shape == (CLIENTS, MODELS, *more)
    torch.testing.assert_close(ends[0].flatten(0, 1)[3], 2 * reported[3] * share[3])
    assert (ends[0][2] == 0).all()


@pytest.mark.skipif(DEVICE == "cuda", reason="the kernels are interpreted, on a model in host memory")
@pytest.mark.parametrize("settings", [{}, {"augment": "crop-flip", "mixup": 0.3}], ids=["plain", "recipe"])
def test_captured_training_reads_by_kernels(settings, monkeypatch):
    monkeypatch.setattr(module_under_test, "usable", lambda device: True)
    calls = []
    read = module_under_test.batch.read
    monkeypatch.setattr(module_under_test.batch, "read", lambda *given: calls.append(1) or read(*given))
    plain, captured = both(images(), **settings)
    assert_same(plain, captured)
    assert calls
