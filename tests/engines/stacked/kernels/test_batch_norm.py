"""The kernels against plain operations: on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

pytest.importorskip("triton")

from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.stacked.batch_norm import make_masked, weighted_rows
from fedfew.engines.stacked.kernels import batch_norm as module_under_test
from fedfew.engines.stacked.kernels.batch_norm import batch_norm, takes
from fedfew.engines.stacked.normalising import normalised, statistics
from fedfew.engines.stacked.traced import recorded
from fedfew.local import cross_entropy, gradient_of
from fedfew.methods import FedSAM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
R, EPS = 3, 1e-3
pytestmark = pytest.mark.usefixtures("exact")


def twin(x, weight, bias, samples, running, share, eps):
    keep = x.new_ones(len(x)) if samples is None else (samples > 0).to(x.dtype)
    mean, variance, values = statistics(x, keep)
    found = normalised(x, mean, variance, weight, bias, eps)
    if running is None:
        return found, x.new_empty(0)
    unbiased = variance * values / (values - 1).clamp_min(1)
    moved = [(1 - share) * before + share * now for before, now in zip(running, (mean, unbiased), strict=True)]
    return found, torch.stack(moved).detach()


def given(samples=5, shape=(4,), affine=True, masked=True, running=True, share=0.1, last=True):
    """Arguments of a stack; samples in the middle and at the end only fill their batch up. last: channels are, in memory."""
    draw = torch.Generator().manual_seed(0)
    size = (R, samples, *shape)

    def some(*of):
        return torch.randn(of, generator=draw).to(DEVICE)

    x = some(*size) + 3 * some(1, 1, shape[0], *[1] * (len(shape) - 1))
    if last:
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    weights = torch.rand(R, samples, generator=draw)
    if samples > 1:
        weights[:, 1::3] = 0
        weights[1, -1] = 0
    return (
        x,
        some(R, shape[0]) if affine else None,
        some(R, shape[0]) if affine else None,
        weights.to(DEVICE) if masked else None,
        (some(R, shape[0]), some(R, shape[0]).square()) if running else None,
        torch.tensor([1.0, 0.5, 0.25], device=DEVICE) if share is None else share,
        EPS,
    )


CASES = {
    "images": {"shape": (4, 3, 3)},
    "channels first in memory": {"shape": (4, 3, 3), "last": False},
    "features": {"shape": (4,)},
    "sequences": {"shape": (4, 5)},
    "volumes": {"shape": (2, 2, 3, 2)},
    "all count": {"shape": (4, 3, 3), "masked": False},
    "not affine": {"shape": (4, 3, 3), "affine": False},
    "no running statistics": {"shape": (4, 3, 3), "running": False},
    "cumulative": {"shape": (4, 3, 3), "share": None},
    "an odd number of channels, more than a program's": {"shape": (67, 2, 2)},
    "one channel": {"shape": (1, 3, 3)},
    "one sample": {"samples": 1, "shape": (4, 3, 3)},
    "one value": {"samples": 1, "shape": (4,)},
    "parts of several tiles": {"samples": 8, "shape": (5, 5, 5), "parts": 4},
    "parts without a sample that counts": {"samples": 3, "shape": (2, 9, 9), "parts": 64},
}


def axes(arguments):
    """Of vmap: all but the settings lie along the stack."""
    return tuple(None if t is None or isinstance(t, float) else 0 for t in arguments)


def derived(of, arguments):
    """What comes out, its running statistics, and the gradients of a loss that all rows are part of."""
    draw = torch.Generator().manual_seed(1)
    g = torch.randn(arguments[0].shape, generator=draw).to(DEVICE)
    learned = [at for at in range(3) if arguments[at] is not None]

    def loss(g, *arguments):
        out, moved = of(*arguments)
        return (out * g).sum(), (out, moved)

    gradients, found = vmap(grad(loss, tuple(1 + at for at in learned), has_aux=True), (0, *axes(arguments)))(g, *arguments)
    return [*found, *gradients]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_plain_operations(case, monkeypatch):
    case = dict(CASES[case])
    if parts := case.pop("parts", None):
        monkeypatch.setattr(module_under_test, "AT_ONCE", 64)  # tiles of few rows, of which there are several
        monkeypatch.setattr(module_under_test, "MOST_SPLITS", parts)
    arguments = given(**case)
    found, want = (derived(of, arguments) for of in (batch_norm, twin))
    if arguments[4] is None:
        assert not found.pop(1).numel()
        want.pop(1)
    assert len(found) == len(want)
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 3, 3), (4,)])
def test_channels_stay_last_in_memory(shape):
    arguments = given(shape=shape)
    out, _, of_x, *_ = derived(batch_norm, arguments)
    for t in (out, of_x):
        assert t.movedim(2, -1).is_contiguous()
        assert t.stride() == arguments[0].stride()


def test_rows_are_divided_among_programs(monkeypatch):
    """So that two levels of sums are tested above. 475 rows are 60 tiles of 8: 30 programs of two each."""
    image = torch.empty(2, 19, 5, 5, 5)
    assert module_under_test._tiles(image)[0] == (1, 1, 2)
    monkeypatch.setattr(module_under_test, "AT_ONCE", 64)
    constants = {"P": 25, "C": 5, "BM": 8, "BC": 8, "num_warps": 4}
    assert module_under_test._tiles(image) == ((30, 1, 2), 16, constants)
    monkeypatch.setattr(module_under_test, "MOST_SPLITS", 4)
    assert module_under_test._tiles(image) == ((4, 1, 2), 120, constants)
    assert module_under_test._tiles(image.expand(2000, -1, -1, -1, -1, -1).flatten(0, 1))[0] == (1, 1, 4000)


def test_a_mean_far_from_zero_costs_no_digits():
    """The deviation is a thousandth of the mean: the difference of mean square and squared mean would have no right digit."""
    x = 1000 + torch.randn(1, 40, 3, 4, 4, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = batch_norm(x[0], None, None, None, None, 0.1, EPS)[0]
    want = twin(x[0].double(), None, None, None, None, 0.1, EPS)[0]
    torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-3)


def test_a_sample_that_does_not_count_may_hold_anything():
    x, weight, bias, samples, running, *rest = given(shape=(4, 3, 3))
    x[samples == 0] = torch.nan
    out, moved = vmap(batch_norm, (0, 0, 0, 0, 0, None, None))(x, weight, bias, samples, running, *rest)
    assert moved.isfinite().all()
    assert out[samples > 0].isfinite().all()


@pytest.mark.parametrize("affine", [True, False])
def test_gradients_of_gradients_are_those_of_plain_operations(affine):
    """As objectives take them that differentiate their own steps, within vmap and outside of it."""
    arguments = given(shape=(4, 2, 2), affine=affine, running=False)
    learned = (0, 1, 2) if affine else (0,)

    def within(of):
        def along(*arguments):
            gradients = grad(lambda *args: (of(*args)[0] ** 3).sum(), learned)(*arguments)
            return sum((g * (at + g)).sum() for at, g in enumerate(gradients))

        return vmap(grad(along, learned), axes(arguments))(*arguments)

    def outside(of):
        leaves = [arguments[at].clone().requires_grad_() for at in learned]
        outputs = vmap(lambda *args: of(*args)[0], axes(arguments))(*leaves, *arguments[len(leaves) :])
        first = torch.autograd.grad((outputs**3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    for second in (within, outside):
        for a, b in zip(second(batch_norm), second(twin), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_within_vmap_twice():
    """Clients, which share the batch of their models, and models."""
    x, weight, bias, samples, *_ = given(shape=(4, 2, 2))
    weights, biases = (torch.stack([t, 2 * t + 1]) for t in (weight, bias))  # [models, clients, C]

    def of_models(of):
        def loss(weight, bias, x, samples):
            out, _ = of(x, weight, bias, samples, None, 0.0, EPS)
            return (out**3).sum()

        models = vmap(grad(loss, (0, 1, 2)), (0, 0, None, None))
        return vmap(models, (1, 1, 0, 0))(weights, biases, x, samples)

    for a, b in zip(of_models(batch_norm), of_models(twin), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


LAYERS = {
    "images": (lambda: nn.BatchNorm2d(4), (4, 3, 2)),
    "features": (lambda: nn.BatchNorm1d(4), (4,)),
    "cumulative": (lambda: nn.BatchNorm2d(4, momentum=None), (4, 3, 2)),
    "no momentum": (lambda: nn.BatchNorm2d(4, momentum=0), (4, 3, 2)),
    "not affine": (lambda: nn.BatchNorm2d(4, affine=False), (4, 3, 2)),
    "no statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (4, 3, 2)),
}


@pytest.fixture
def everywhere(monkeypatch):
    """Kernels are also for the CPU, on which the interpreter runs them; unless said otherwise."""

    def usable(kernels=True):
        monkeypatch.setattr(module_under_test, "usable", lambda device: kernels)

    usable()
    return usable


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_is_pytorchs_own_on_what_counts(name, everywhere):
    """Over three batches of another number of samples each, then in evaluation."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    plain = make().to(DEVICE)
    if plain.affine:
        nn.init.normal_(plain.weight), nn.init.normal_(plain.bias)
    masked = make_masked(make().to(DEVICE))
    masked.load_state_dict(plain.state_dict())
    for b in (6, 2, 5):
        x = torch.randn(6, *shape, device=DEVICE, requires_grad=True)
        alone = x.detach()[:b].clone().requires_grad_()
        with weighted_rows(((torch.arange(6) < b) / b).to(DEVICE)):
            y = masked(x)[:b]
        assert "_BatchNormBackward" in str(y.grad_fn.next_functions[0][0].next_functions[0][0]), "by the kernel"
        (y**3).sum().backward()
        expected = plain(alone)
        (expected**3).sum().backward()
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x.grad[:b], alone.grad, rtol=1e-3, atol=1e-4)
        assert not x.grad[b:].any()
    for (key, found), want in zip(masked.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5, msg=key)
    for p, q in zip(masked.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    x = torch.randn(6, *shape, device=DEVICE)
    torch.testing.assert_close(masked.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


class Small(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.conv, self.norm2d = nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3, momentum=momentum)
        self.hidden, self.norm1d = nn.Linear(12, 4), nn.BatchNorm1d(4, momentum=momentum)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm2d(self.conv(x)).relu().flatten(1)
        return self.out(self.norm1d(self.hidden(x)).relu())


def looked_around(loss, params, context):
    """The objective of a method that takes a gradient first."""
    parameters = {path: t for path, t in params.items() if t.is_floating_point() and "running" not in path}
    buffers = {path: t.clone() for path, t in params.items() if path not in parameters}
    there, _ = gradient_of(loss, parameters, buffers)
    return loss({path: t + 0.1 * there[path] if path in there else t for path, t in params.items()}), loss(params).detach()


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("objective", [cross_entropy, looked_around])
def test_a_step_of_the_stack_is_the_same_in_fewer_operations(objective, momentum, everywhere):
    torch.manual_seed(0)
    module = Small(momentum)
    engine = Stacked(module, LocalTraining(0.1, 5), 0)
    state = {name: torch.stack([t, 2 * t]).to(DEVICE) for name, t in module.state_dict().items()}
    x, y = torch.randn(2, 5, 2, 4, 4).to(DEVICE), torch.randint(0, 3, (2, 5)).to(DEVICE)
    weight = torch.tensor([[0.2] * 5, [0.25] * 4 + [0.0]]).to(DEVICE)

    def step(kernels):
        everywhere(kernels)
        weights = {name: t.clone() for name, t in state.items()}
        function, rest = engine.differentiation.gradients(objective, weights, {}, keyed=False)
        recording = recorded(function, (x, y, weight, *rest))
        for name, t in weights.items():
            assert torch.equal(t, state[name]), "recorded without a trace"
        found = recording.forward(x, y, weight, *rest)
        return (found, weights), [str(node.target) for node in recording.graph.nodes]

    (got, operations), (want, plain) = step(True), step(False)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    layers = 2 if objective is cross_entropy else 6  # of two, in the look around, in the step, and in the loss reported
    assert operations.count("fedfew.batch_norm.default") == plain.count("aten.rsqrt.default") == layers
    assert "aten.rsqrt.default" not in operations
    assert len(operations) < 0.7 * len(plain)


def test_a_method_that_takes_gradients_within_its_objective(everywhere):
    torch.manual_seed(0)
    module = Small()
    engine = Stacked(module, LocalTraining(0.1, 5), 0)
    state = {name: torch.stack([t, 2 * t]).to(DEVICE) for name, t in module.state_dict().items()}
    x, y = torch.randn(2, 5, 2, 4, 4).to(DEVICE), torch.randint(0, 3, (2, 5)).to(DEVICE)
    weight = torch.full((2, 5), 0.2).to(DEVICE)

    def gradients(kernels):
        everywhere(kernels)
        learned = {name: t.clone() for name, t in state.items() if engine.trainable(name)}
        buffers = {name: t.clone() for name, t in state.items() if not engine.trainable(name)}
        trees = {"parameters": learned, "buffers": buffers}
        found = engine.differentiation.differentiate(FedSAM(rho=0.5).objective, trees, x, y, weight, {}, None)
        return found, buffers

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-3, atol=1e-4)


def test_batches_that_the_kernel_is_not_for(everywhere):
    x, parameter = torch.zeros(2, 3), torch.ones(3)
    assert takes(x, parameter, None)
    assert not takes(x.double())
    assert not takes(x.bfloat16(), parameter)
    assert not takes(x, parameter.double())
    assert not takes(torch.zeros(3))
    assert not takes(torch.zeros(0, 3))
    assert not takes(torch.zeros(1, 1).expand(2**16, 2**15))
    everywhere(False)
    assert not takes(x, parameter)
