"""FedBABU: what moves and what does not. A float64 reference is in personal_references.py."""

from __future__ import annotations

import pytest
import torch

from fedfew.methods import FedBABU
from fedfew.stack import branch
from tests.methods.small import FEATURES, assert_same, federation, initial, served, train


def test_the_head_is_never_trained_in_rounds_and_never_travels() -> None:
    run = train(FedBABU(finetune="body", finetune_epochs=1), participation=1.0)
    start = initial()
    for state in served(run):
        assert torch.equal(state["2.weight"], start["2.weight"])
        assert not torch.equal(state["0.weight"], start["0.weight"])
    body, losses = 4 * (FEATURES * 5 + 5), 4
    assert run.history.bytes_down[0] == len(federation()) * body
    assert run.history.bytes_up[0] == len(federation()) * (body + losses)
    assert run.models == []


@pytest.mark.parametrize("finetune", ["head", "whole"])
def test_the_bodies_sent_do_not_depend_on_fine_tuning(finetune: str) -> None:
    one, other = train(FedBABU(finetune="body", finetune_epochs=1)), train(FedBABU(finetune=finetune, finetune_epochs=1))  # type: ignore[arg-type]
    assert_same(dict(one.state.server), dict(other.state.server))


def test_fine_tuning_the_head_keeps_the_body_as_received() -> None:
    """After round 2 clients hold the body that round 1 ended with."""
    before = train(FedBABU(finetune="head", finetune_epochs=1), rounds=1, participation=1.0).state.server
    after = train(FedBABU(finetune="head", finetune_epochs=1), rounds=2, participation=1.0)
    for state in served(after):
        assert torch.equal(state["0.weight"], before["0.weight"][0])
    assert len({float(state["2.bias"][0]) for state in served(after)}) == len(federation())
    assert torch.equal(branch(after.state.own, "head")["2.bias"][3], initial()["2.bias"])
