"""Linear layers multiplied by oneDNN: the same steps as plain ones, and only large products of single precision are replaced."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedfew.engines import Sequential, Threaded, onednn_products
from fedfew.engines.onednn_products import multiply_by_onednn
from fedfew.engines.stacked.script import scripted
from fedfew.engines.stacked.traced import recorded
from fedfew.stack import leaves
from tests.engines.small import images, trained

needs_both = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch comes without oneDNN")
aten = torch.ops.aten


def targets(graph):
    return [node.target for node in graph.nodes if node.op == "call_function"]


def operations(x, weights, bias, g):
    return torch.addmm(bias, x, weights.t()), g @ weights, weights.clone().addmm_(g.t(), x, alpha=-0.1)


def arguments(samples, inputs, outputs, dtype=torch.float32):
    torch.manual_seed(0)
    return tuple(
        torch.randn(*shape).to(dtype) for shape in ((samples, inputs), (outputs, inputs), (outputs,), (samples, outputs))
    )


@needs_both
def test_large_products_are_those_of_double_precision():
    given = arguments(40, 600, 90)
    recording = recorded(operations, given)
    multiply_by_onednn(recording.graph)
    assert targets(recording.graph).count(torch.ops.mkldnn._linear_pointwise.default) == 3
    assert not {aten.mm.default, aten.addmm.default, aten.addmm_.default} & set(targets(recording.graph))
    program = scripted(recording.graph, recording.constants)
    assert program is not None  # replayed without Python in between
    for replay in (program, recording):
        for found, want in zip(replay(*given), operations(*(t.double() for t in given)), strict=True):
            assert found.is_contiguous()
            torch.testing.assert_close(found, want.float(), rtol=1e-5, atol=1e-4)


@needs_both
@pytest.mark.parametrize(
    ("given", "left"),
    [
        (arguments(40, 60, 9), {aten.addmm.default, aten.mm.default, aten.addmm_.default}),  # small
        (arguments(40, 600, 90, torch.float64), {aten.addmm.default, aten.mm.default, aten.addmm_.default}),
        (arguments(20, 600, 90), {aten.addmm_.default}),  # of few samples
    ],
)
def test_other_products_stay(given, left):
    recording = recorded(operations, given)
    multiply_by_onednn(recording.graph)
    assert {aten.mm.default, aten.addmm.default, aten.addmm_.default} & set(targets(recording.graph)) == left


def a_layer():
    return nn.Sequential(nn.Flatten(), nn.Linear(600, 90), nn.ReLU(), nn.Linear(90, 3))


@needs_both
@pytest.mark.parametrize("training", [{}, {"momentum": 0.5}, {"schedule": "cosine", "rounds": 4}])
def test_steps_are_those_of_plain_training(monkeypatch, training):
    data, multiplied = images(sizes=(80, 50), shape=(6, 10, 10)), []
    monkeypatch.setattr(onednn_products, "faster", lambda: True)
    monkeypatch.setattr(
        onednn_products,
        "multiply_by_onednn",
        lambda graph: (multiply_by_onednn(graph), multiplied.extend(targets(graph))),
    )
    found, want = (trained(cls, a_layer, data, batch_size=40, lr=0.01, **training)[1:] for cls in (Threaded, Sequential))
    assert torch.ops.mkldnn._linear_pointwise.default in multiplied
    for mine, plain in zip([*leaves(found[0]), found[1]], [*leaves(want[0]), want[1]], strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("maker", "machine", "found"),
    [("AuthenticAMD", "x86_64", True), ("GenuineIntel", "x86_64", False), ("AuthenticAMD", "aarch64", False)],
)
def test_the_maker_of_the_processor_decides(monkeypatch, maker, machine, found):
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    monkeypatch.setattr(onednn_products.platform, "machine", lambda: machine)
    monkeypatch.setattr(onednn_products.Path, "exists", lambda self: True)
    monkeypatch.setattr(onednn_products.Path, "read_text", lambda self: f"vendor_id\t: {maker}\n")
    assert onednn_products.faster.__wrapped__() == (found and hasattr(torch.ops.mkldnn, "_linear_pointwise"))
