"""A module with layers from the kernels computes what it did before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from fedfew import models
from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.stacked.fused import ContiguousGroupNorm, FusedConvolution, make_fused
from fedfew.engines.stacked.traced import recorded
from fedfew.local import cross_entropy
from fedfew.methods import FedSAM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("exact")


def paper():
    return models.build("cnn", (3, 16, 16), 4)


def other_order():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(), nn.Linear(36, 3)
    )


def grouped_norm():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, 2, 1, bias=False), nn.GroupNorm(2, 4), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(16, 3)
    )


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv1d(5, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.conv(x).relu().amax(-1))


@pytest.mark.parametrize(
    ("factory", "shape", "fused", "pooled"),
    [
        pytest.param(paper, (3, 16, 16), 2, 2, marks=pytest.mark.skipif(DEVICE == "cpu", reason="a minute in the interpreter")),
        pytest.param(other_order, (2, 8, 8), 2, 1, marks=pytest.mark.slow),
        pytest.param(grouped_norm, (2, 8, 8), 1, 0, marks=pytest.mark.slow),
        (Words, (5, 9), 1, 0),
    ],
)
def test_gradients_of_a_stack_are_the_same(factory, shape, fused, pooled):
    torch.manual_seed(0)
    module = factory()
    engines = [Stacked(module, LocalTraining(0.1, 3), 0) for _ in range(2)]
    engines[1].module = make_fused(engines[1].module, "fp32")
    layers = [m for m in engines[1].module.modules() if isinstance(m, FusedConvolution)]
    assert (len(layers), sum(layer.pool for layer in layers)) == (fused, pooled)
    weights = {name: (t + 0.1 * torch.randn(2, *t.shape)).to(DEVICE) for name, t in module.state_dict().items()}
    x, y, weight = (t.to(DEVICE) for t in (torch.randn(2, 3, *shape), torch.randint(0, 3, (2, 3)), torch.full((2, 3), 1 / 3)))
    (want, losses), (got, fused_losses) = (
        e.differentiation.differentiate(cross_entropy, weights, x, y, weight, {}, None) for e in engines
    )
    torch.testing.assert_close(fused_losses, losses, rtol=1e-5, atol=1e-5)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    function, rest = engines[1].differentiation.gradients(cross_entropy, weights, {}, keyed=False)
    recording = recorded(function, (x, y, weight, *rest))
    assert sum(str(node.target) == "fedfew.convolution.default" for node in recording.graph.nodes) == fused
    for a, b in zip(recording.forward(x, y, weight, *rest)[0], got, strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_a_method_that_takes_gradients_within_its_objective():
    torch.manual_seed(0)
    module = Words()
    plain, fused = (Stacked(module, LocalTraining(0.1, 3), 0) for _ in range(2))
    fused.module = make_fused(fused.module, "fp32")
    weights = {"parameters": {name: torch.stack([t, 2 * t]).to(DEVICE) for name, t in module.state_dict().items()}, "buffers": {}}
    x, y, weight = (t.to(DEVICE) for t in (torch.randn(2, 3, 5, 9), torch.randint(0, 3, (2, 3)), torch.full((2, 3), 1 / 3)))
    (want, losses), (got, fused_losses) = (
        e.differentiation.differentiate(FedSAM(rho=0.5).objective, weights, x, y, weight, {}, None) for e in (plain, fused)
    )
    torch.testing.assert_close(fused_losses, losses, rtol=1e-5, atol=1e-5)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_names_of_parameters_stay():
    module = paper()
    fused = make_fused(copy.deepcopy(module), "tf32")
    assert list(fused.state_dict()) == list(module.state_dict())
    assert fused[0].precision == "tf32"
    assert fused[3].flattened
    assert not fused[0].flattened
    assert fused[0].as_factor  # a convolution comes next
    assert not fused[3].as_factor


class OneByOne(nn.Module):
    """Calls layers of a sequence by itself, and reads what lies between two convolutions."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(3, 4, 2), nn.Conv1d(4, 3, 2))

    def forward(self, x):
        between = self.layers[0](x)
        return self.layers[1](between).mean(-1) + between[:, :3].mean(-1) + self.layers[:1](x)[:, 1:].mean(-1)


def in_a_row():
    return nn.Sequential(nn.Conv1d(3, 4, 2), nn.Conv1d(4, 5, 1), nn.Conv1d(5, 2, 2), nn.Flatten(), nn.Linear(6, 3))


@pytest.mark.parametrize(("factory", "factors"), [pytest.param(in_a_row, 2, marks=pytest.mark.slow), (OneByOne, 0)])
def test_float16_lies_where_the_next_convolution_alone_reads_it(factory, factors):
    """Its gradient is scaled. 1e-2: what differs between layers is rounded to 11 binary digits a few times."""
    torch.manual_seed(0)
    module = factory()
    plain, fused = (Stacked(module, LocalTraining(0.1, 3), 0) for _ in range(2))
    fused.module = make_fused(fused.module, "fp16")
    weights = {name: torch.stack([t, 2 * t]).to(DEVICE) for name, t in module.state_dict().items()}
    x, y, weight = (t.to(DEVICE) for t in (torch.randn(2, 3, 3, 5), torch.randint(0, 3, (2, 3)), torch.full((2, 3), 1e-6)))
    (want, _), (got, _) = (
        e.differentiation.differentiate(cross_entropy, weights, x, y, weight, {}, None) for e in (plain, fused)
    )
    for a, b in zip(got, want, strict=True):
        assert (a - b).norm() < 1e-2 * b.norm()
    function, rest = fused.differentiation.gradients(cross_entropy, weights, {}, keyed=False)
    nodes = recorded(function, (x, y, weight, *rest)).graph.nodes
    assert [node.args[8] for node in nodes if str(node.target) == "fedfew.convolution.default"].count(True) == factors


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, stride=(1, 2)),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(4, 4, 3, stride=2),
        nn.Linear(4, 4),
    ],
)
def test_what_the_kernels_do_not_know_stays(layer):
    assert make_fused(layer, "fp32") is layer
    assert make_fused(nn.Sequential(layer), "fp32")[0] is layer


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2)],
)
def test_other_pooling_is_left_to_pytorch(pool):
    fused = make_fused(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), pool), "fp32")
    assert not fused[0].pool
    assert fused[2] is pool


def test_a_single_convolution_and_group_norm():
    assert isinstance(make_fused(nn.Conv2d(2, 4, 3), "fp32"), FusedConvolution)
    fused, plain = make_fused(nn.Sequential(nn.GroupNorm(2, 4)), "fp32"), nn.GroupNorm(2, 4)
    assert isinstance(fused[0], ContiguousGroupNorm)
    x = torch.randn(3, 5, 5, 4).permute(0, 3, 1, 2)
    assert torch.equal(fused(x), plain(x.contiguous()))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_layers_with_hooks_are_left_alone(at):
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    layers[at].register_forward_hook(lambda layer, inputs, output: 2 * output)
    fused = make_fused(layers, "fp32")
    assert [type(layer) for layer in fused][1:] == [nn.ReLU, nn.MaxPool2d]
    assert isinstance(fused[0], FusedConvolution) == (at != 0)


def test_a_layer_that_comes_a_second_time_is_not_passed_over():
    """ReLU and pooling do not follow the convolution: what comes between has come before."""
    between = nn.Tanh()
    fused = make_fused(nn.Sequential(between, nn.Conv2d(2, 4, 3), between, nn.ReLU(), nn.MaxPool2d(2)), "fp32")
    assert not fused[1].pool
    assert [type(layer) for layer in fused][2:] == [nn.Tanh, nn.ReLU, nn.MaxPool2d]
