"""The maximum over time of a stack against PyTorch's own operations: on the GPU where there is one, else in the interpreter."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

pytest.importorskip("triton")

from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.stacked.descent import descending
from fedfew.engines.stacked.fused import FusedConvolution, FusedMaxOverTime, make_fused
from fedfew.engines.stacked.kernels import launch
from fedfew.engines.stacked.kernels import max_over_time as operation
from fedfew.engines.stacked.kernels.max_over_time import max_over_time, twin
from fedfew.engines.stacked.traced import recorded
from fedfew.local import cross_entropy
from fedfew.models.max_over_time import MaxOverTime
from fedfew.models.textcnn import TextCNN

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("exact", "small_tiles")
SMALL = {
    "forward": {"BM": 16, "BN": 16, "BK": 16},
    "filters": {"BP": 16, "BD": 16},
    "words": {"EACH": 4, "BP": 2, "BD": 16},
}
# texts, words, channels, filters and their width
SHAPES = {
    "three widths": (3, 9, 20, ((4, 1), (3, 2), (5, 4))),
    "one width, several texts in a tile": (7, 5, 3, ((3, 3),)),
    "texts longer than a tile": (2, 40, 16, ((7, 3), (8, 4), (5, 5))),
    "as long as a filter": (5, 4, 8, ((2, 4), (20, 2))),
}


@pytest.fixture
def small_tiles(monkeypatch):
    """In the interpreter, which takes as long for a tile that is mostly empty; several of each kind in any case."""
    usual = operation.tiles
    monkeypatch.setattr(operation, "tiles", lambda part, *about: usual(part, *about) | (SMALL[part] if DEVICE == "cpu" else {}))


def drawn(shape, replicas=2):
    B, T, D, sizes = shape
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(replicas, B, T, D, generator=draw)
    weights = [torch.randn(replicas, own, D, width, generator=draw) for own, width in sizes]
    return [t.to(DEVICE).requires_grad_() for t in (x, *weights)]


def upstream(like):
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def close(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_those_of_pytorch(name):
    x, *weights = drawn(SHAPES[name])
    found = []
    for of in (max_over_time, twin):
        y = of(x, weights)
        found.append([y, *torch.autograd.grad((y * upstream(y)).sum(), [x, *weights])])
    close(*found)


def test_texts_that_are_not_trained_have_no_gradient():
    x, *weights = (t.detach() for t in drawn(SHAPES["three widths"]))
    weights = [w.requires_grad_() for w in weights]
    close(*(torch.autograd.grad(of(x, weights).square().sum(), weights) for of in (max_over_time, twin)))


def test_few_replicas_have_their_texts_divided_among_programs(monkeypatch):
    """The gradient of the filters is then in parts."""
    monkeypatch.setattr(launch, "PROGRAMS", 10**6)
    x, *weights = drawn((20, 5, 8, ((3, 2),)), replicas=1)
    y = max_over_time(x, weights)
    with torch.no_grad():
        _, index, seen, packed = operation._forward(x, weights, "fp32")
        parts = operation._backward(upstream(y), index, x, packed, [3], [2], False)[1]
    assert len(parts) > 1
    assert seen.numel() == 0  # x itself
    found = [torch.autograd.grad((of(x, weights) * upstream(y)).sum(), weights) for of in (max_over_time, twin)]
    close(*found)


def test_gradients_within_vmap_and_around_it():
    x, *weights = drawn((2, 5, 4, ((2, 1), (1, 2), (2, 3))))

    def loss(of, x, *weights):
        return of(x[None], [w[None] for w in weights]).square().sum()

    axes = tuple(range(1 + len(weights)))
    got, want = (
        vmap(grad(lambda *tensors, of=of: loss(of, *tensors), argnums=axes))(x, *weights) for of in (max_over_time, twin)
    )
    close(got, want)
    for in_dims in ((0, 0, 0, 0), (None, 0, 0, 0)):  # texts of one's own, and those of the first
        texts, found = x if in_dims[0] == 0 else x[0], []
        for of in (max_over_time, twin):
            y = vmap(lambda *tensors, of=of: loss(of, *tensors), in_dims)(texts, *weights)
            found.append(torch.autograd.grad(y.sum(), [x, *weights]))
        close(*found)


def test_the_first_of_equal_windows_counts_and_nan_goes_through():
    x = torch.zeros(1, 2, 40, 1, device=DEVICE)
    x[0, 0, [5, 21, 30]] = 2.0
    x[0, 1, 33] = 1.0
    x.requires_grad_()
    one = torch.ones(1, 1, 1, 1, device=DEVICE, requires_grad=True)
    max_over_time(x, [one]).sum().backward()
    assert x.grad.nonzero()[:, 1:3].tolist() == [[0, 5], [1, 33]]
    with torch.no_grad():
        for at in (0, 17, 39):
            poisoned = x.clone()
            poisoned[0, 0, at] = torch.nan
            largest, index, *_ = operation._forward(poisoned, [one], "fp32")
            assert largest[0, :, 0].isnan().tolist() == [True, False]
            assert index[0, :, 0].tolist() == [at, 33]


def test_negative_answers_are_not_outdone_by_what_lies_beyond_a_text():
    """Words after the last text, and windows across two texts, count as nothing and not as 0."""
    x, *weights = drawn((3, 7, 4, ((2, 3), (3, 2))))
    x, weights = x.detach().abs() + 1, [-w.detach().abs() for w in weights]
    close([max_over_time(x, weights)], [twin(x, weights)])
    assert (max_over_time(x, weights) < 0).all()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_factors_in_16_bits_are_rounded_and_nothing_else(precision, monkeypatch):
    if DEVICE == "cpu":  # the interpreter has no bf16
        monkeypatch.setitem(launch.STORED, "bf16", torch.float16)
    tensors = drawn(SHAPES["three widths"])
    rounded = [t.detach().to(launch.stored(precision)).float().requires_grad_() for t in tensors]
    y, want = max_over_time(tensors[0], tensors[1:], precision), twin(rounded[0], rounded[1:])
    g = 1e-6 * upstream(want)
    found = torch.autograd.grad((y * g).sum(), tensors)
    close([y, *(1e6 * t for t in found)], [want, *(1e6 * t for t in torch.autograd.grad((want * g).sum(), rounded))])
    assert {t.dtype for t in (y, *found)} == {torch.float32}


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter multiplies in float32 whatever is asked for")
def test_precision_is_what_was_asked_for():
    x, *weights = (t.detach() for t in drawn((20, 50, 64, ((100, 3), (100, 4), (100, 5)))))
    want = twin(x.double(), [w.double() for w in weights])
    error = {p: float((max_over_time(x, weights, p) - want).norm() / want.norm()) for p in ("fp32", "tf32", "fp16", "bf16")}
    assert error["fp32"] < 1e-6 < error["tf32"] < 1.2e-3
    assert 1e-6 < error["fp16"] < error["bf16"] / 4  # eight times the digits
    assert error["bf16"] < 5e-3


def test_second_derivatives_are_refused():
    x, *weights = drawn((2, 5, 3, ((2, 2),)))
    (first,) = torch.autograd.grad(max_over_time(x, weights).square().sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), weights)


def test_texts_shorter_than_a_filter_are_refused():
    x, *weights = drawn((2, 3, 4, ((2, 2), (2, 4))))
    with pytest.raises(ValueError, match="over 4 words needs texts of at least as many, not of 3"):
        max_over_time(x, weights)


def stacks(module):
    """The module as it is, and with the kernels; and weights of two replicas."""
    engines = [Stacked(module, LocalTraining(0.1, 3), 0) for _ in range(2)]
    engines[1].module = make_fused(engines[1].module, "fp32")
    weights = {name: torch.stack([t, 2 * t]).to(DEVICE) for name, t in module.state_dict().items()}
    return engines, weights


def test_a_text_cnn_moves_the_same_and_of_its_embedding_the_rows_that_occur():
    torch.manual_seed(0)
    module = TextCNN(3, vocabulary=30, embedding=6, filters=4, drop=0.0)
    (plain, fused), weights = stacks(module)
    assert isinstance(fused.module.convolutions, FusedMaxOverTime)
    assert list(fused.module.state_dict()) == list(module.state_dict())
    x = torch.randint(1, 12, (2, 3, 9), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    x[:, :, 6:] = 0  # padding
    y, weight = torch.tensor([[0, 1, 2], [2, 1, 0]], device=DEVICE), torch.full((2, 3), 1 / 3, device=DEVICE)
    ends = []
    for engine in (plain, fused):
        own = {name: t.clone() for name, t in weights.items()}
        function, rest = engine.differentiation.gradients(cross_entropy, own, {}, keyed=False)
        recording = recorded(function, (x, y, weight, *rest))
        places = [3 + list(own).index(name) for name in own]
        recording = descending(recording, places, 0.5, kernels=engine is fused)
        called = [str(node.target) for node in recording.graph.nodes]
        recording(x, y, weight, *rest)
        ends.append(own)
    assert "fedfew.max_over_time.default" in called
    assert not {"fedfew.convolution.default", "aten.where.self", "aten.embedding_dense_backward.default"} & {*called}
    for name in weights:
        torch.testing.assert_close(ends[1][name], ends[0][name], rtol=1e-4, atol=1e-5)
        assert not torch.equal(ends[1][name], weights[name])
    moved = (ends[1]["embedding.weight"] != weights["embedding.weight"]).any(-1)
    assert not moved[:, 12:].any()
    assert not moved[:, 0].any()
    assert moved.any()


def hooked(layers):
    layers[1].register_forward_hook(lambda *_: None)


def without_bias(layers):
    layers[1] = nn.Conv1d(6, 2, 3, bias=False)


def padded(layers):
    layers[1] = nn.Conv1d(6, 2, 3, padding=1)


@pytest.mark.parametrize("change", [hooked, without_bias, padded])
def test_layers_that_the_kernels_do_not_know_are_called_one_by_one(change):
    layers = MaxOverTime([nn.Conv1d(6, 3, 2), nn.Conv1d(6, 2, 3)])
    change(layers)
    fused = make_fused(copy.deepcopy(layers), "fp32")
    assert type(fused) is MaxOverTime
    assert isinstance(fused[0], FusedConvolution)
    assert isinstance(fused[1], nn.Conv1d) == (change is hooked)
