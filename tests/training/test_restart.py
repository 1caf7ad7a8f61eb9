"""Models that no client uses start again near the clients that are served worst."""

from __future__ import annotations

import pytest
import torch

from fedfew.methods import IFCA, FedAvg, FedFew
from fedfew.training.restart import restarted, unused_for
from fedfew.training.server_step import ServerStep
from tests.methods.small import assert_same, differ, tensors, train


def test_a_model_is_unused_while_no_client_gives_it_half_of_an_equal_share():
    log_weights = torch.tensor([[0.9, 0.05, 0.05], [0.6, 0.2, 0.2]]).log() + torch.tensor([[3.0], [-2.0]])  # α does not matter
    assert unused_for((), log_weights) == (0, 0, 0)  # 0.2 is more than 1/6
    assert unused_for((), log_weights[:1]) == (0, 1, 1)
    assert unused_for((4, 5, 0), log_weights[:1]) == (0, 6, 1)


def test_a_restart_by_hand():
    """Client 1 is served worst (least loss 0.7), by model 2: model 0 becomes 0.9·θ_2 + 0.1·θ_0."""
    theta = torch.tensor([[10.0], [20.0], [30.0]])
    moments = {"first": {"w": torch.ones(3, 1)}, "second": {}}
    step = ServerStep({"w": theta}, moments, {"w": theta + 1}, 0.5, unused=(5, 0, 5))
    losses = torch.tensor([[0.9, 0.1, 0.8], [0.9, 0.8, 0.7]])
    found, which = restarted(step, losses, after=5)
    assert which == [(0, 2)]  # model 2 was idle as long, but it is the neighbour
    torch.testing.assert_close(found.server["w"], torch.tensor([[28.0], [20.0], [30.0]]))
    torch.testing.assert_close(found.average["w"], torch.tensor([[28.0], [21.0], [31.0]]))
    torch.testing.assert_close(found.moments["first"]["w"], torch.tensor([[0.0], [1.0], [1.0]]))
    assert found.unused == (0, 0, 5)
    assert restarted(step, losses, after=6) == (step, [])


def run(restart_unused, folder=None, **more):
    """Distinct models and a tiny μ: some are never the best of any client."""
    events: list[str] = []
    settings = {"rounds": 6, "restart_unused": restart_unused, "server_optimizer": "momentum", "server_average": 0.5, "lr": 0.01}

    def collect(progress):
        events.extend(event for event in progress.events if "starts again" in event)
        return more.get("until") and ("stop" if progress.round == more["until"] else None)

    result = train(
        FedFew(models=4, mu=1e-4), on_round=collect, folder=folder, **(settings | {k: v for k, v in more.items() if k != "until"})
    )
    return result, events


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_run_restarts_and_a_line_says_so(engine):
    plain, nothing = run(0, engine=engine)
    found, events = run(2, engine=engine)
    assert nothing == []
    assert events
    assert "near model" in events[0]
    assert events[0].endswith("no client had used it for 2 rounds")
    assert differ(tensors(plain), tensors(found))


def test_a_stopped_run_goes_on_counting(tmp_path):
    run(3, tmp_path / "run", until=2)
    resumed, events = run(3, tmp_path / "run", resume=True)
    whole, all_events = run(3)
    assert events == all_events != []
    assert_same(tensors(resumed), tensors(whole))


@pytest.mark.parametrize("method", [FedAvg(), FedFew(models=2, share="body")], ids=["fedavg", "one-body"])
def test_a_method_without_k_whole_models_says_that_it_has_no_effect(method):
    events: list[str] = []
    found = train(method, restart_unused=1, on_round=lambda progress: events.extend(progress.events))
    why = f"{method.name} does not keep several whole models on the server"
    assert f"restart_unused is 1, but {why}: it has no effect" in events
    assert_same(tensors(found), tensors(train(method)))


def test_ifca_restarts_the_models_that_nobody_joins():
    events: list[str] = []
    train(IFCA(models=4), restart_unused=1, rounds=4, on_round=lambda progress: events.extend(progress.events))
    assert any("starts again near model" in event for event in events)
