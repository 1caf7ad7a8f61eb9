"""A model that is not finite at a site is left out for that site only, as in the simulator."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfew.methods import FedFew
from fedfew.stack import leaves, named_leaves
from tests.flower.support import fake_network, losing, same_as_simulated, server_loop, simulated

BAD_CLIENT, BAD_MODEL = 1, 0
EVENT = "round 2: model 0 left out, its loss or update is not finite: for clients 1"


def spoil(monkeypatch: pytest.MonkeyPatch, where: str, models: list[int]) -> None:
    """In round 2 these models of one client are not finite, wherever it is trained."""
    client = FedFew.client

    def spoiled(self, received, own, local):
        outcome = client(self, received, own, local)
        for row in range(len(local.clients)) if local.round == 2 else ():
            if int(local.clients[row]) == BAD_CLIENT:
                for t in [outcome.reply.losses] if where == "losses" else leaves(outcome.reply.update):
                    t[row, models] = math.nan
        return outcome

    monkeypatch.setattr(FedFew, "client", spoiled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "settings"),
    [
        ("losses", {}),
        ("update", {}),
        ("losses", {"method": "fedfew:models=2,share=body"}),  # the update of the body is that of both models
        ("update", {"aggregation": "masked"}),
    ],
)
def test_one_of_two_models_is_left_out_as_in_the_simulator(tmp_path: Path, monkeypatch, where: str, settings: dict) -> None:
    settings = {"method": "fedfew:models=2"} | settings
    spoil(monkeypatch, where, [BAD_MODEL])
    run = server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    oracle = simulated(**settings)
    if "aggregation" not in settings:
        same_as_simulated(run, oracle, tmp_path / "sites")
    for (_, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(oracle.state.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)
    assert [event for event in run.state.events if "finite" in event] == [EVENT]
    assert [event for event in oracle.state.events if "finite" in event] == [EVENT]
    assert np.isnan(run.history.losses[1]).nonzero() == (BAD_CLIENT, BAD_MODEL)
    lost = server_loop(tmp_path / "lost", fake_network(tmp_path / "lost", change=losing((BAD_CLIENT, 2))), **settings).run()
    assert not torch.equal(leaves(lost.state.server)[0], leaves(run.state.server)[0])  # the other model of the client counts


@pytest.mark.parametrize("where", ["losses", "update"])
def test_a_client_without_a_finite_model_is_left_out(tmp_path: Path, monkeypatch, where: str) -> None:
    spoil(monkeypatch, where, [0, 1])
    run = server_loop(tmp_path, fake_network(tmp_path), method="fedfew:models=2").run()
    (event,) = run.state.events
    assert event.startswith("round 2: client 1 is left out: ")
    assert event.endswith("not finite")
    assert np.isnan(run.history.losses[1]).all(1).tolist() == [False, True, False, False]


def test_a_private_state_that_is_not_finite_is_left_out(tmp_path: Path, monkeypatch) -> None:
    from fedfew.methods import Ditto

    client = Ditto.client

    def spoiled(self, received, own, local):
        outcome = client(self, received, own, local)
        if local.round == 2 and int(local.clients[0]) == BAD_CLIENT:
            leaves(outcome.own)[0].fill_(math.nan)
        return outcome

    monkeypatch.setattr(Ditto, "client", spoiled)
    run = server_loop(tmp_path, fake_network(tmp_path), method="ditto").run()
    assert run.state.events == ["round 2: client 1 is left out: losses is not finite"]
    assert np.isfinite(run.history.served_loss).all()


@pytest.mark.parametrize("bad", [-math.inf, math.nan, 1e39])
def test_other_losses_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    def forged(node, message, reply):
        if message.kind == "train" and node == 101:
            reply.values["losses"] = [1.0, bad]
        return reply

    run = server_loop(tmp_path, fake_network(tmp_path, change=forged), method="fedfew:models=2", rounds=1).run()
    assert run.state.events == ["round 1: client 1 is left out: losses is not finite"]
