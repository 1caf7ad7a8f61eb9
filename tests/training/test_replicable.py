"""Modules that copies with weights of their own would not do justice to are refused, whatever the engine."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.training.replicable import check_replicable

FEATURES, CLASSES = 5, 3
X = torch.arange(2.0 * FEATURES).reshape(2, FEATURES)
COUNTER = torch.zeros(())


class Plain(nn.Module):
    """Remembers in many a way how often it was called."""

    def __init__(self, call) -> None:
        super().__init__()
        self.layer, self.call = nn.Linear(FEATURES, CLASSES), call
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("not_sent", torch.zeros(()), persistent=False)
        self.number, self.tensor, self.listed, self.weights = 0, torch.zeros(()), [torch.zeros(())], [self.layer.weight]
        self.apply_layer = lambda x: self.layer(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def counting(counter):
    return lambda module, x: module.layer(x) / counter(module)


def number(module: Plain) -> int:
    module.number += 1
    return module.number


def replaced(module: Plain) -> Tensor:
    module.tensor = module.tensor + 1
    return module.tensor


COUNTERS = {
    "number": number,
    "replaced": replaced,
    "tensor": lambda module: module.tensor.add_(1),
    "listed": lambda module: module.listed[0].add_(1),
    "global": lambda module: COUNTER.add_(1),
    "not sent": lambda module: module.not_sent.add_(1),
}


@pytest.mark.parametrize("counter", COUNTERS.values(), ids=COUNTERS)
def test_what_is_remembered_elsewhere_than_in_buffers_is_refused(counter):
    with pytest.raises(ValueError, match=r"model: Plain .* remembers something elsewhere .*Keep it in a buffer"):
        check_replicable(Plain(counting(counter)), X)


def standardised(module: Plain, x: Tensor) -> Tensor:
    if module.training:
        module.tensor = x.mean(0)
    return module.layer(x - (x.mean(0) if module.training else module.tensor))


def test_what_is_remembered_for_evaluation_alone_is_refused() -> None:
    """As by a normalisation of one's own whose running mean is no buffer: its outputs in training are the same each time."""
    with pytest.raises(ValueError, match=r"model: Plain .* remembers something elsewhere .*Keep it in a buffer"):
        check_replicable(Plain(standardised), X)


ELSEWHERE = {"list": lambda module, x: F.linear(x, module.weights[0]), "lambda": lambda module, x: module.apply_layer(x)}


@pytest.mark.parametrize("call", ELSEWHERE.values(), ids=ELSEWHERE)
def test_parameters_reached_by_another_way_are_refused(call):
    with pytest.raises(ValueError, match=r"model: Plain reaches parameters by another way .*self\.layer\.weight"):
        check_replicable(Plain(call), X)


def keeping(module: Plain, x: Tensor) -> Tensor:
    module.number, module.tensor = module.number + 1, module.layer(x)
    return module.tensor


TAKEN = {
    "buffer": counting(lambda module: module.calls.add_(1)),
    "kept but not used": keeping,
    "random": lambda module, x: F.dropout(module.layer(x), 0.5, module.training) * random.random(),
    "functional": lambda module, x: F.linear(x, module.layer.weight),
}


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN)
def test_others_are_taken_and_stay_as_they_are(call):
    module = Plain(call)
    before, state = {name: t.clone() for name, t in module.state_dict().items()}, random.getstate()
    check_replicable(module.eval(), X)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert random.getstate() == state
    assert not module.training
