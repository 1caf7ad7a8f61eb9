"""Biases added by what reads a product: the same step in fewer kernels. On the GPU where there is one, else interpreted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.precision import products
from fedfew.engines.stacked import traced
from fedfew.engines.stacked.kernels import bias_relu as bias_relu_module
from fedfew.engines.stacked.kernels import cross_entropy as cross_entropy_module
from fedfew.engines.stacked.kernels import linear_gradient, linear_relu
from fedfew.local import cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("exact")


@pytest.mark.parametrize("kernel", [False, True])
def test_bias_and_relu(kernel, monkeypatch):
    monkeypatch.setattr(bias_relu_module, "usable", lambda device: kernel)
    draw = torch.Generator().manual_seed(0)
    x, bias = torch.randn(3, 5, 300, generator=draw).to(DEVICE), torch.randn(3, 1, 300, generator=draw).to(DEVICE)
    x[1, 2, 3] = torch.nan
    found = bias_relu_module.bias_relu(x, bias)
    torch.testing.assert_close(found, torch.clamp_min(x + bias, 0), equal_nan=True, rtol=0, atol=0)
    assert found[1, 2, 3].isnan()
    assert (found == 0).any()


@pytest.mark.parametrize("kernel", [False, True])
def test_back_through_a_linear_layer_and_relu(kernel, monkeypatch):
    monkeypatch.setattr(linear_gradient, "usable", lambda device: kernel)
    draw = torch.Generator().manual_seed(0)
    before, weight, g = (torch.randn(size, generator=draw).to(DEVICE) for size in ((2, 35, 140), (2, 3, 140), (2, 35, 3)))
    before.requires_grad_()
    activation = before.relu()
    (want,) = torch.autograd.grad(((activation @ weight.mT) * g).sum(), before)
    torch.testing.assert_close(linear_gradient.through_relu(g, weight, activation), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(7, 70, 150), (64, 32, 64), (1, 130, 9)])
def test_a_layer_and_relu(kernel, rows, outputs, inputs, monkeypatch):
    """Whole numbers, so that TF32 and the order of sums make no difference."""
    monkeypatch.setattr(linear_relu, "usable", lambda device: kernel)
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randint(-4, 5, size, generator=draw).float().to(DEVICE)
        for size in ((3, rows, inputs), (3, outputs, inputs), (3, 1, outputs))
    )
    x[1, 0, 3] = torch.nan
    found = linear_relu.linear_relu(x.mT.contiguous().mT, weight, bias)
    torch.testing.assert_close(found, torch.clamp_min(x @ weight.mT + bias, 0), equal_nan=True, rtol=0, atol=0)
    assert found[1, 0].isnan().all()
    assert (found == 0).any()


def test_layers_for_which_the_kernel_is_made():
    assert linear_relu.suits(50, 512, 1600)
    assert not linear_relu.suits(65, 512, 1600)
    assert not linear_relu.suits(50, 50, 1600)
    assert not linear_relu.suits(50, 64, 1000)
    assert not linear_relu.suits(50, 2**16, 2**15)
    assert [linear_relu.tiles(50, 512, replicas)["BN"] for replicas in (3, 20)] == [16, 64]


def sees_logits(loss, params, context):
    """An objective that reads the logits a second time."""
    logits = loss.logits(params)
    value = loss.of(logits)
    return value + logits.square().sum(), value.detach()


class Twice(nn.Module):
    """Two layers read the result of one ReLU: its gradient is a sum of products."""

    def __init__(self):
        super().__init__()
        self.inner, self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(7, 3)

    def forward(self, x):
        features = self.inner(x).relu()
        return self.a(features) + self.b(features)


RELU = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
CASES = {  # a module, an objective, and what of it is fused: ReLU, the loss, ReLU's gradient
    "all": (RELU, cross_entropy, 1, 1, 1),
    "another activation": (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), cross_entropy, 0, 1, 0),
    "logits that something else reads": (RELU, sees_logits, 1, 0, 1),
    "many outputs": (nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 33)), cross_entropy, 1, 1, 0),
    "two readers": (Twice(), cross_entropy, 1, 0, 0),
    "no biases": (nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 3, bias=False)), cross_entropy, 0, 0, 1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prior", [False, True])
def test_a_step_is_the_same(case, prior, monkeypatch):
    for module in (bias_relu_module, cross_entropy_module, linear_gradient):
        monkeypatch.setattr(module, "usable", lambda device: True)
    torch.manual_seed(0)
    module, objective, relus, losses, gradients = CASES[case]
    engine = Stacked(module, LocalTraining(0.1, 4), 0)
    weights = {name: torch.randn(2, *t.shape).to(DEVICE) for name, t in module.state_dict().items()}
    x, y, weight = (t.to(DEVICE) for t in (torch.randn(2, 4, 5), torch.randint(0, 3, (2, 4)), torch.full((2, 4), 0.25)))
    context = {"__log_prior__": torch.randn(2, module(torch.zeros(1, 5)).shape[1]).to(DEVICE), "__context__": {}} if prior else {}
    function, rest = engine.differentiation.gradients(objective, weights, context, keyed=False)
    recording = traced.recorded(function, (x, y, weight, *rest))
    want = function(x, y, weight, *rest)
    before = [node.target for node in recording.graph.nodes].count(torch.ops.aten.baddbmm.default)
    monkeypatch.setattr(traced, "usable", lambda device: True)
    replay = traced._replay(recording, torch.device("cuda"))  # as on a GPU
    nodes = recording.graph.nodes
    assert [node.target for node in nodes].count(torch.ops.fedfew.bias_relu.default) == relus
    assert sum(node.target is torch.ops.fedfew.cross_entropy.default and len(node.args) == 8 for node in nodes) == losses
    assert [node.target for node in nodes].count(torch.ops.aten.baddbmm.default) == before - relus - losses
    assert [node.target for node in nodes].count(torch.ops.fedfew.through_relu.default) == gradients
    torch.testing.assert_close(replay(x, y, weight, *rest), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("precision", "small", "layers"), [("tf32", 1, 1), ("fp32", 1, 0), ("tf32", 2**16, 0)])
def test_a_large_layer_and_relu_are_one(precision, small, layers, monkeypatch):
    """Where products round to TF32; the way back through the last layer and ReLU is one as before."""
    monkeypatch.setattr(linear_relu, "LARGE", small)
    for module in (bias_relu_module, cross_entropy_module, linear_gradient, linear_relu):
        monkeypatch.setattr(module, "usable", lambda device: True)
    torch.manual_seed(0)
    engine = Stacked(RELU, LocalTraining(0.1, 4), 0)
    weights = {name: torch.randn(2, *t.shape).to(DEVICE) for name, t in RELU.state_dict().items()}
    x, y, weight = (t.to(DEVICE) for t in (torch.randn(2, 4, 5), torch.randint(0, 3, (2, 4)), torch.full((2, 4), 0.25)))
    function, rest = engine.differentiation.gradients(cross_entropy, weights, {}, keyed=False)
    recording = traced.recorded(function, (x, y, weight, *rest))
    want = function(x, y, weight, *rest)
    monkeypatch.setattr(traced, "usable", lambda device: True)
    with products(precision, torch.device("cuda")):
        replay = traced._replay(recording, torch.device("cuda"))
    names = [str(node.target) for node in recording.graph.nodes]
    found = [names.count(f"fedfew.{name}.default") for name in ("linear_relu", "bias_relu", "through_relu")]
    assert found == [layers, 1 - layers, 1]
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if DEVICE == "cpu" else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(replay(x, y, weight, *rest), want, **tolerance)
