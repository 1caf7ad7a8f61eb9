"""The kernel against plain operations: on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, grad_and_value, vmap

pytest.importorskip("triton")

from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.loss import shifted, stacked_cross_entropy
from fedfew.engines.stacked.kernels import cross_entropy as module_under_test
from fedfew.engines.stacked.kernels.cross_entropy import cross_entropy, takes
from fedfew.engines.stacked.traced import recorded
from fedfew.local import cross_entropy as plain_objective
from fedfew.local import gradient_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
R, B, N = 3, 5, 6


def twin(logits, y, weight, class_weights, smoothing, importance, log_prior):
    return stacked_cross_entropy(shifted(logits, log_prior), y, weight, class_weights, smoothing, importance)


def given(labels=1, classes=N, batch=B, smoothing=0.0, prior=False, weighted=False, important=False):
    """Arguments of a stack; the last sample of every replica only fills its batch up."""
    draw = torch.Generator().manual_seed(0)
    of_labels = (R, batch) if labels == 1 else (R, batch, labels)
    weight = torch.rand(of_labels, generator=draw)
    weight[:, -1] = 0

    def some(wanted, *size):
        return torch.rand(size, generator=draw).to(DEVICE) if wanted else None

    return (
        3 * torch.randn(R, batch, classes, generator=draw).to(DEVICE),
        torch.randint(0, classes, of_labels, generator=draw).to(DEVICE),
        weight.to(DEVICE),
        some(weighted, R, classes),
        smoothing,
        some(important, *of_labels),
        some(prior, R, classes),
    )


def axes(arguments):
    return tuple(0 if isinstance(t, torch.Tensor) else None for t in arguments)


CASES = {
    "plain": {},
    "prior": {"prior": True},
    "importance": {"important": True},
    "smoothed": {"smoothing": 0.2},
    "class weights": {"weighted": True},
    "everything, mixed": {"labels": 2, "smoothing": 0.3, "prior": True, "weighted": True, "important": True},
    "one class": {"classes": 1},
    "one sample": {"batch": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_plain_operations(case):
    arguments = given(**CASES[case])
    found, want = (vmap(grad_and_value(of), axes(arguments))(*arguments) for of in (cross_entropy, twin))
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


def test_more_samples_than_a_program_holds_at_once(monkeypatch):
    monkeypatch.setattr(module_under_test, "AT_ONCE", 16)
    arguments = given(labels=2, smoothing=0.1, weighted=True)
    found, want = (vmap(grad_and_value(of), axes(arguments))(*arguments) for of in (cross_entropy, twin))
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


def test_a_class_that_is_ruled_out_costs_nothing():
    logits, y, weight, *rest = given()
    prior = torch.zeros(R, N, device=DEVICE)
    prior[:, 0] = -torch.inf
    arguments = (logits, y.clamp_min(1), weight, *rest[:-1], prior)
    loss, gradient = vmap(grad_and_value(cross_entropy), axes(arguments))(*arguments)[::-1]
    assert loss.isfinite().all()
    assert (gradient[..., 0] == 0).all()


def test_gradients_of_gradients_are_those_of_plain_operations():
    """As objectives take them that differentiate their own steps, within vmap and outside of it."""
    arguments = given(labels=2, smoothing=0.3, weighted=True)

    def curvature(of):
        def along(logits, *rest):
            return grad(of)(logits, *rest).square().sum()

        return vmap(grad(along), axes(arguments))(*arguments)

    def outside(of):
        logits = arguments[0].clone().requires_grad_()
        losses = vmap(of, axes(arguments))(logits, *arguments[1:])
        (first,) = torch.autograd.grad((losses * torch.arange(1, R + 1, device=DEVICE)).sum(), logits, create_graph=True)
        return torch.autograd.grad(first.square().sum(), logits)[0]

    for second in (curvature, outside):
        torch.testing.assert_close(second(cross_entropy), second(twin), rtol=1e-5, atol=1e-6)


def looked_around(loss, params, context):
    """The objective of a method that takes a gradient first."""
    there, _ = gradient_of(loss, params, {})
    return loss({path: t + 0.1 * there[path] for path, t in params.items()}), loss(params).detach()


@pytest.mark.parametrize("objective", [plain_objective, looked_around])
def test_a_step_of_the_stack_is_the_same_in_fewer_operations(objective, monkeypatch):
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    engine = Stacked(module, LocalTraining(0.1, B, label_smoothing=0.1), 0)
    weights = {name: (t + 0.1 * torch.randn(2, *t.shape)).to(DEVICE) for name, t in module.state_dict().items()}
    x, y, weight = (t.to(DEVICE) for t in (torch.randn(2, B, 5), torch.randint(0, 3, (2, B)), torch.full((2, B), 1 / B)))
    context = {"__log_prior__": torch.randn(2, 3).to(DEVICE), "__context__": {}}

    def step(kernel):
        monkeypatch.setattr(module_under_test, "usable", lambda device: kernel)
        function, rest = engine.differentiation.gradients(objective, weights, context, keyed=False, smoothing=0.1)
        recording = recorded(function, (x, y, weight, *rest))
        return recording.forward(x, y, weight, *rest), [str(node.target) for node in recording.graph.nodes]

    (got, operations), (want, plain) = step(True), step(False)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert operations.count("fedfew.cross_entropy.default") == plain.count("aten.log.default") > 0
    assert "aten.log.default" not in operations
    if objective is plain_objective:  # nothing is multiplied by a gradient of ones
        assert "aten.mul.Tensor" not in operations


def test_logits_that_the_kernel_is_not_for(monkeypatch):
    logits = torch.zeros(2, 3)
    assert not takes(logits) or DEVICE == "cuda"
    monkeypatch.setattr(module_under_test, "usable", lambda device: True)
    assert takes(logits)
    assert not takes(logits.double())
    assert not takes(logits[None])
    assert not takes(torch.zeros(1, 2000))
    assert not takes(torch.zeros(10_000, 10))
