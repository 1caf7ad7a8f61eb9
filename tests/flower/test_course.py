"""The course of a run over a network of sites in this process."""

import numpy as np
import pytest
import torch

import fedfew
from fedfew.flower.generations import Generations
from fedfew.methods import METHODS
from fedfew.stack import named_leaves, take
from tests.flower.small import course, neighbourhood, simulated

NOT_COMPARED = ("seconds", "bytes_up")  # local-only training sends its losses here


def same_as_simulated(run, oracle, sites, clients=4, tolerance=1e-5):
    """The server's state, the clients' own and the history, to float tolerance."""
    for (name, a), (other, b) in zip(named_leaves(run.state.server), named_leaves(oracle.state.server), strict=True):
        assert name == other
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert run.history.columns == oracle.history.columns
    for name in run.history.columns:
        if name not in NOT_COMPARED:
            np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-4, atol=1e-5, err_msg=name)
    if oracle.state.own:
        for i in range(clients):
            kept = Generations(sites / f"client-{i}" / run.state.sites["run"]).read(run.round)
            for name, t in named_leaves(take(oracle.state.own, torch.tensor([i]))):
                torch.testing.assert_close(dict(named_leaves(kept["own"]))[name], t, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", [*METHODS, "fedfew:share=body,mu=0.1", "apfl:mixing=round"])
def test_every_method_ends_as_in_the_simulator(method, tmp_path):
    run = course(tmp_path, neighbourhood(tmp_path), method=method).run()
    same_as_simulated(run, simulated(method=method), tmp_path / "sites")
    assert run.state.events == []
    assert fedfew.load(tmp_path / "run", lambda: None).round == 3
