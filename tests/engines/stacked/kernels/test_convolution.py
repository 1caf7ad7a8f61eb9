"""The kernels against PyTorch's own operations: on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

pytest.importorskip("triton")

from fedfew.engines.stacked.kernels import launch
from fedfew.engines.stacked.kernels.convolution import convolution, twin

pytestmark = pytest.mark.usefixtures("exact")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_A_GPU = pytest.mark.skipif(
    DEVICE == "cpu", reason="takes a minute in the interpreter, where its parts are tested by themselves"
)
# channels, height, width, filters, filter height and width, stride, padding, pooled
SHAPES = {
    "colours, pooled": (3, 9, 8, 5, 5, 5, 1, (0, 0), True),
    "many channels, pooled": (40, 6, 6, 6, 3, 3, 1, (0, 0), True),
    "padded and pooled": (4, 8, 8, 6, 3, 3, 1, (1, 1), True),
    "padded": (4, 9, 8, 6, 3, 3, 1, (1, 1), False),
    "strided": (4, 9, 8, 6, 3, 3, 2, (1, 1), False),
    "strided, pixels left over": (2, 8, 8, 3, 3, 3, 2, (0, 0), False),
    "shortcut": (3, 8, 8, 4, 1, 1, 2, (0, 0), False),
    "stem": (3, 7, 7, 4, 7, 7, 2, (3, 3), False),
    "words": (16, 1, 9, 7, 1, 3, 1, (0, 0), False),
}


def tensors(shape, seed=0, replicas=2, batch=3):
    C, H, W, N, KH, KW, *_ = shape
    draw = torch.Generator().manual_seed(seed)
    sizes = (replicas, batch, C, H, W), (replicas, N, C, KH, KW), (replicas, N)
    return [torch.randn(size, generator=draw).to(DEVICE).requires_grad_() for size in sizes]


def close(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def rounded(t):
    return t.to(launch.STORED["bf16"]).float()


SLOW = (
    "many channels, pooled",
    "strided, pixels left over",
    "colours, pooled",
    "padded and pooled",
    "padded",
    "stem",
    "strided",
)  # in the interpreter: seconds each


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SHAPES])
def test_values_and_gradients_are_those_of_pytorch(name):
    *_, stride, padding, pool = shape = SHAPES[name]
    x, weight, bias = tensors(shape)
    want = twin(x, weight, bias, stride, padding, pool)
    got = convolution(x, weight, bias, stride, padding, pool)
    g = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    gradients = [torch.autograd.grad((y * g).sum(), [x, weight, bias]) for y in (got, want)]
    close([got, *gradients[0]], [want, *gradients[1]])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in ("padded and pooled", "strided")] + ["words"])
def test_bf16_rounds_the_factors_and_nothing_else(name, monkeypatch):
    """Where x, the filters and the gradient that comes in are rounded already, the results are those of float32."""
    if DEVICE == "cpu":  # the interpreter has no bf16
        monkeypatch.setitem(launch.STORED, "bf16", torch.float16)
    *_, stride, padding, pool = shape = SHAPES[name]
    exact = tensors(shape)
    x, weight = (rounded(t.detach()).requires_grad_() for t in exact[:2])
    bias = exact[2]
    want = twin(x, weight, bias, stride, padding, pool)
    got = convolution(exact[0], exact[1], bias, stride, padding, pool, "bf16")
    g = rounded(torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE))
    found = torch.autograd.grad((got * g).sum(), [exact[0], exact[1], bias])
    close([got, *found], [want, *torch.autograd.grad((want * g).sum(), [x, weight, bias])])
    assert {t.dtype for t in (got, *found)} == {torch.float32}


def test_between_two_convolutions_numbers_are_stored_as_factors(monkeypatch):
    """What comes out is rounded, and so is the gradient that the second hands to the first."""
    if DEVICE == "cpu":
        monkeypatch.setitem(launch.STORED, "bf16", torch.float16)
    x, weight, _ = tensors(SHAPES["words"])
    second = torch.randn(2, 5, 7, 1, 2, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    between = convolution(x, weight, None, precision="bf16", as_factor=True)
    assert between.dtype == launch.STORED["bf16"]
    got = convolution(between, second, None, precision="bf16")
    want = rounded(twin(rounded(x.detach()), rounded(weight.detach()), None, 1, (0, 0), False)).requires_grad_()
    after = twin(want, rounded(second), None, 1, (0, 0), False)
    close([between.float(), got], [want, after])
    g = rounded(torch.randn(got.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE))
    (found,) = torch.autograd.grad((got * g).sum(), between)
    (expected,) = torch.autograd.grad((after * g).sum(), want)
    assert found.dtype == launch.STORED["bf16"]
    close([found.float()], [rounded(expected)])


@pytest.mark.parametrize("name", ["colours, pooled", "words"])
def test_no_input_gradient_and_no_bias(name):
    *_, stride, padding, pool = shape = SHAPES[name]
    x, weight, _ = tensors(shape)
    x = x.detach()
    pair = [f(x, weight, None, stride, padding, pool) for f in (convolution, twin)]
    close(
        [pair[0], *torch.autograd.grad(pair[0].square().sum(), weight)],
        [pair[1], *torch.autograd.grad(pair[1].square().sum(), weight)],
    )


@pytest.mark.parametrize("of_x", [False, True])
def test_images_of_few_channels_are_filled_up_in_tf32(of_x):
    """Values and gradients, whether that of the images is wanted or not. TF32 has eleven binary digits, the interpreter all."""
    x, weight, bias = tensors((3, 6, 6, 4, 3, 3, 1, (0, 0), True))
    wanted = [x, weight, bias] if of_x else [weight, bias]
    x = x if of_x else x.detach()
    pair = [convolution(x, weight, bias, pool=True, precision="tf32"), twin(x, weight, bias, 1, (0, 0), True)]
    found = [[y, *torch.autograd.grad(y.square().sum(), wanted)] for y in pair]
    for got, want in zip(*found, strict=True):
        assert (got - want).norm() < 3e-3 * want.norm()


@pytest.mark.slow
def test_vmap_over_replicas_and_candidates():
    shape = SHAPES["many channels, pooled"]
    x, weight, bias = (t.detach() for t in tensors(shape, replicas=4))
    x = x[:2]  # two clients, who share their samples among two candidates each

    def one(x, weight, bias):
        return convolution(x[None], weight[None], bias[None], pool=True).squeeze(0)

    candidates = vmap(one, in_dims=(None, 0, 0))
    got = vmap(candidates)(x, weight.unflatten(0, (2, 2)), bias.unflatten(0, (2, 2)))
    want = twin(x.repeat_interleave(2, 0), weight, bias, 1, (0, 0), True)
    close([got.flatten(0, 1)], [want])


@pytest.mark.parametrize("name", [pytest.param("padded and pooled", marks=ON_A_GPU), "words"])
def test_gradients_within_vmap(name):
    """As methods take them that look around before they move: FedSAM, pFedMe, Per-FedAvg."""
    *_, stride, padding, pool = shape = SHAPES[name]
    x, weight, bias = (t.detach() for t in tensors(shape))

    def loss(of, weight, bias, x):
        return of(x[None], weight[None], bias[None], stride, padding, pool).square().sum()

    def gradients(of):
        return vmap(torch.func.grad(lambda w, b, x: loss(of, w, b, x), argnums=(0, 1, 2)))(weight, bias, x)

    close(gradients(convolution), gradients(twin))


@pytest.mark.slow
def test_second_derivatives_are_refused():
    x, weight, bias = tensors(SHAPES["shortcut"])
    (first,) = torch.autograd.grad(convolution(x, weight, bias).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), weight)


def test_layouts_do_not_matter():
    shape = SHAPES["colours, pooled"]
    x, weight, bias = (t.detach() for t in tensors(shape))
    plain = convolution(x, weight, bias, pool=True)
    first = convolution(x.movedim(2, -1).contiguous().movedim(-1, 2), weight, bias, pool=True, channels_first=True)
    assert first.is_contiguous()
    assert not plain.is_contiguous()
    assert torch.equal(plain, first)


def test_a_maximum_that_occurs_twice_goes_to_the_first_and_nan_goes_through():
    x = torch.zeros(1, 1, 1, 2, 2, device=DEVICE)
    x[..., 0, 1] = x[..., 1, 0] = 3.0
    x.requires_grad_()
    one = torch.ones(1, 1, 1, 1, 1, device=DEVICE, requires_grad=True)
    convolution(x, one, None, pool=True).sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 0, 0]
    with torch.no_grad():
        for at in range(4):
            poisoned = x.clone()
            poisoned.view(-1)[at] = torch.nan
            assert convolution(poisoned, one, None, pool=True).isnan().all()


def test_relu_cuts_off_both_ways():
    x = -torch.ones(1, 1, 1, 2, 2, device=DEVICE)
    x.requires_grad_()
    one = torch.ones(1, 1, 1, 1, 1, device=DEVICE, requires_grad=True)
    y = convolution(x, one, None, pool=True)
    y.sum().backward()
    assert y.item() == 0
    assert x.grad.abs().sum() == one.grad.abs().sum() == 0


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter multiplies in float32 whatever is asked for")
def test_precision_is_what_was_asked_for():
    *_, stride, padding, pool = shape = (64, 8, 8, 32, 3, 3, 1, (1, 1), False)
    x, weight, bias = tensors(shape)
    want = twin(x.double(), weight.double(), bias.double(), stride, padding, pool)
    error = {
        p: float((convolution(x, weight, bias, stride, padding, pool, p) - want).norm() / want.norm())
        for p in ("fp32", "tf32", "fp16", "bf16")
    }
    assert error["fp32"] < 1e-6 < error["tf32"] < 1.2e-3 < error["bf16"] < 5e-3
    assert 1e-6 < error["fp16"] < 1.2e-3
