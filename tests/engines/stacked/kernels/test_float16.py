"""Convolutions in float16, whose gradients are stored scaled: on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

pytest.importorskip("triton")

from fedfew.engines.stacked.kernels import launch, scaling
from fedfew.engines.stacked.kernels.convolution import convolution, twin

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("exact", "small_tiles")
OFF = 1e-3
"""How far results may be off, relative to their length. Factors are rounded to 11 binary digits as in TF32, each by at most
2⁻¹¹, 4.9e-4. x and the filters have no more digits from the start; gradients are rounded up to twice, on the way back through two
convolutions."""
# height, width and channels of x; filter height and width; stride, padding, pooled: of the first of two convolutions
FIRST = {
    "pooled, in windows": (6, 6, 3, 3, 3, 1, (0, 0), True),
    "pooled and padded": (4, 4, 3, 3, 3, 1, (1, 1), True),
    "padded": (3, 4, 3, 3, 3, 1, (1, 1), False),
    "strided": (7, 5, 2, 3, 3, 2, (1, 1), False),
    "strided, whole reads": (7, 5, 8, 3, 3, 2, (1, 1), False),
    "words": (1, 6, 5, 1, 3, 1, (0, 0), False),
}
SHAPES = [
    pytest.param(name, marks=[] if name == "words" else pytest.mark.slow) for name in FIRST
]  # in the interpreter: seconds each


@pytest.fixture
def small_tiles(monkeypatch):
    """Triton's interpreter multiplies numbers of 16 bits one after the other."""
    tiles = launch.tiles
    if DEVICE == "cpu":
        small = {"BM": 16, "BN": 16, "BK": 16, "BT": 16, "BQ": 16}
        monkeypatch.setattr(launch, "tiles", lambda *about: {n: small.get(n, v) for n, v in tiles(*about).items()})


def drawn(*sizes):
    """Numbers that float16 has."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=draw).half().float().to(DEVICE).requires_grad_() for size in sizes]


def as_stored(y):
    """Rounded to float16, with the gradient of y."""
    return y + (y.half().float() - y).detach()


def off(got, want):
    return [((a - b).norm() / b.norm()).item() for a, b in zip(got, want, strict=True)]


def two(name, of_x, times):
    """The gradients of two convolutions in a row, where that of what comes out is about as large as ``times``, and what they are
    in float32: of x if asked for, and of both's filters and biases."""
    height, width, channels, KH, KW, *settings = FIRST[name]
    then = KH // 2 + 1, KW // 2 + 1  # the second one's filters
    x, w, b, v, c = drawn((2, 3, channels, height, width), (2, 8, channels, KH, KW), (2, 8), (2, 3, 8, *then), (2, 3))
    between = convolution(x if of_x else x.detach(), w, b, *settings, "fp16", as_factor=True)
    got = convolution(between, v, c, precision="fp16", from_factor=True)
    assert (between.dtype, got.dtype) == (torch.float16, torch.float32)
    want = twin(as_stored(twin(x, w, b, *settings)), v, c, 1, (0, 0), False)
    assert off([got], [want])[0] < OFF
    g = times * torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    wanted = [*([x] if of_x else []), w, b, v, c]
    return [torch.autograd.grad((y * g).sum(), wanted) for y in (got, want)]


@pytest.mark.parametrize("times", [1.0, 1e-6])
@pytest.mark.parametrize("of_x", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_two_convolutions_in_a_row(name, of_x, times):
    """1e-6 is far below the least number of which float16 has all digits."""
    found = two(name, of_x, times)
    assert max(off(*found)) < OFF
    assert {t.dtype for t in found[0]} == {torch.float32}


def test_without_the_scale_small_gradients_lose_their_digits(monkeypatch):
    monkeypatch.setitem(scaling.SCALE, "fp16", 1.0)
    assert max(off(*two("words", True, 1e-6))) > 10 * OFF


@pytest.mark.parametrize("times", [1.0, 1e-6])
@pytest.mark.parametrize("of_x", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_from_and_to_float32(name, of_x, times):
    """As between layers that are no convolutions, in ResNet say: what comes in and goes out is not scaled."""
    height, width, channels, KH, KW, *settings = FIRST[name]
    x, w, b = drawn((2, 3, channels, height, width), (2, 4, channels, KH, KW), (2, 4))
    got, want = convolution(x if of_x else x.detach(), w, b, *settings, "fp16"), twin(x, w, b, *settings)
    g = times * torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    wanted = [*([x] if of_x else []), w, b]
    assert max(off(*(torch.autograd.grad((y * g).sum(), wanted) for y in (got, want)))) < OFF


@pytest.mark.slow
def test_two_pooled_convolutions_within_vmap():
    """As the stack calls them: gradients taken within vmap, where autograd might round or convert what goes between."""
    x, w, b, v, c = (t.detach() for t in drawn((2, 2, 2, 6, 6), (2, 8, 2, 3, 3), (2, 8), (2, 3, 8, 1, 1), (2, 3)))

    def loss(of, w, b, v, c, x):
        if of is twin:
            between = as_stored(twin(x[None], w[None], b[None], 1, (0, 0), True))
            y = twin(between, v[None], c[None], 1, (0, 0), True)
        else:
            between = convolution(x[None], w[None], b[None], pool=True, precision="fp16", as_factor=True).squeeze(0)
            y = convolution(between[None], v[None], c[None], pool=True, precision="fp16", from_factor=True)
        return 1e-6 * y.square().sum()

    got, want = (vmap(grad(lambda *of, f=f: loss(f, *of), argnums=(0, 1, 2, 3, 4)))(w, b, v, c, x) for f in (convolution, twin))
    assert max(off(got, want)) < OFF


def test_the_gradient_of_another_float16_is_not_scaled():
    """Of a tensor that a model made float16 itself."""
    x, w = drawn((1, 2, 3, 1, 6), (1, 4, 3, 1, 3))
    (got,), (want,) = (torch.autograd.grad(y.sum(), x) for y in (
        convolution(x.half(), w, None, precision="fp16"), twin(x, w, None, 1, (0, 0), False)
    ))  # fmt: skip
    assert off([got], [want])[0] < OFF


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy in the interpreter: overflow
@pytest.mark.parametrize("name", ["words", pytest.param("pooled, in windows", marks=pytest.mark.slow)])
def test_numbers_beyond_the_range_become_infinite(name):
    """And are not cut off at the largest float16: an update that is not finite is reported."""
    height, width, channels, KH, KW, *settings = FIRST[name]
    x, w = drawn((1, 2, channels, height, width), (1, 4, channels, KH, KW))
    assert not convolution(1e5 * x.detach(), w, None, *settings, "fp16").isfinite().all()
    assert not convolution(x.detach(), 1e5 * w, None, *settings, "fp16").isfinite().all()
    y = convolution(x, w, None, *settings, "fp16")
    largest = 65504 / scaling.SCALE["fp16"]
    for g, fits in ((0.9 * largest, True), (1.1 * largest, False)):
        for gradient in torch.autograd.grad((g * y).sum(), [x, w], retain_graph=True):
            assert bool(gradient.isfinite().all()) == fits
