"""Parameters moved by sums: the kernel and plain operations, on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.stacked.descent import descending
from fedfew.engines.stacked.fused import make_fused
from fedfew.engines.stacked.kernels import descend as module_under_test
from fedfew.engines.stacked.kernels.descend import descend
from fedfew.engines.stacked.traced import recorded
from fedfew.local import cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("several", [1, 2])
def test_parameters_move_by_sums_over_parts(kernel, several, monkeypatch):
    """Sums over a first and over a middle axis, of more parts than are added at once, a gradient as it is, filters that lie
    channels last; with several of each more than the kernel takes at once."""
    monkeypatch.setattr(module_under_test, "usable", lambda device: kernel)
    draw = torch.Generator().manual_seed(0)

    def numbers(*size):
        return torch.randn(size, generator=draw).to(DEVICE)

    first, middle, plain, filters = numbers(3, 2, 150), numbers(2, 20, 5), numbers(2, 4), numbers(2, 4, 3, 3, 5)
    parameters = [t for _ in range(several) for t in (numbers(2, 150), numbers(2, 5), numbers(2, 4), numbers(2, 4, 3, 3, 5))]
    parameters = [t if t.ndim < 5 else t.movedim(-1, 2) for t in parameters]
    moves = [first.sum(0), middle.sum(1), plain, filters.movedim(-1, 2)] * several
    want = [t - 0.5 * g for t, g in zip(parameters, moves, strict=True)]
    descend(parameters, [first, middle, plain, filters] * several, [3, 20, 1, 1] * several, [300, 5, 8, 360] * several, -0.5)
    for got, right in zip(parameters, want, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv1d(5, 4, 3), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.norm(self.conv(x).relu().amax(-1)))


@pytest.mark.parametrize("channels_last", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_recorded_step_sums_where_it_adds(channels_last, monkeypatch):
    monkeypatch.setattr(module_under_test, "usable", lambda device: True)
    torch.manual_seed(0)
    module = Small()
    engine = Stacked(module, LocalTraining(0.1, 5), 0)
    engine.module = make_fused(engine.module, "fp32")

    def laid_out(t):
        return t.movedim(2, -1).contiguous().movedim(-1, 2) if channels_last and t.ndim > 3 else t

    weights = {name: laid_out((t + 0.1 * torch.randn(2, *t.shape)).to(DEVICE)) for name, t in module.state_dict().items()}
    x, y, weight = (t.to(DEVICE) for t in (torch.randn(2, 5, 5, 9), torch.randint(0, 3, (2, 5)), torch.full((2, 5), 0.2)))
    function, rest = engine.differentiation.gradients(cross_entropy, weights, {}, keyed=False)
    gradients, losses = function(x, y, weight, *rest)
    want = [t - 0.1 * g for t, g in zip(weights.values(), gradients, strict=True)]
    step = descending(recorded(function, (x, y, weight, *rest)), [3 + i for i in range(len(weights))], 0.1, kernels=True)
    operations = [str(node.target) for node in step.graph.nodes]
    (moved,) = (node for node in step.graph.nodes if str(node.target) == "fedfew.descend.default")
    names = [list(weights)[int(node.name.removeprefix("given_")) - 3] for node in moved.args[0]]
    assert names == [name for name in weights if name != "out.weight" and (channels_last or name != "conv.weight")]
    parts = dict(zip(names, moved.args[2], strict=True))
    assert parts["out.bias"] == 5  # samples
    assert ("aten._foreach_add_.List" in operations) is not channels_last
    torch.testing.assert_close(step.forward(x, y, weight, *rest), losses)
    for got, right in zip(weights.values(), want, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "found"), [(None, True), (torch.float32, True), (torch.float64, False)])
def test_a_sum_that_autocast_asks_to_be_in_float32_is_one_too(dtype, found):
    def gradients(parameter, parts):
        summed = parts.sum(0, dtype=dtype) if dtype else parts.sum(0)
        return [summed.float()], parts.sum()

    step = descending(recorded(gradients, (torch.zeros(3), torch.ones(4, 3))), [0], 0.1, kernels=True)
    (moved,) = (node for node in step.graph.nodes if str(node.target) == "fedfew.descend.default")
    assert moved.args[2] == [4 if found else 1]
