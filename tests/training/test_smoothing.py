"""FedFew's smoothing μ falls over the last quarter of the rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.compressed_updates import WithCompression

from fedfew import scalarization
from fedfew.config import TrainConfig
from fedfew.methods import FedAvg, FedFew
from tests.methods.small import PLAIN, assert_same, differ, tensors, train


def test_the_factor_by_hand():
    config = TrainConfig(
        rounds=8, smoothing_end=0.25
    )  # 8 rounds: the last quarter is rounds 7 and 8, in equal steps of logarithms
    assert [config.smoothing_of(t) for t in range(1, 9)] == [1, 1, 1, 1, 1, 1, 0.5, 0.25]
    assert {TrainConfig(rounds=8).smoothing_of(t) for t in range(1, 9)} == {1.0}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("share", ["none", "body"])
def test_weights_of_every_round_are_those_of_its_smoothing(engine, share):
    method = FedFew(models=2, mu=0.4, share=share, weigh_samples=False, most_share=1.0)
    run = train(method, rounds=4, smoothing_end=0.01, engine=engine, **PLAIN)
    for t, factor in enumerate([1, 1, 1, 0.01]):
        losses = torch.from_numpy(run.history.losses[t]).double()
        alpha, w = scalarization.weights(losses, 0.4 * factor)
        np.testing.assert_allclose(run.history.alpha[t], alpha, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(run.history.w[t], w, rtol=2e-4, atol=1e-6)
    if share == "body":  # a client keeps w for the next round's body
        torch.testing.assert_close(run.state.own["w"], w.float(), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("method", [FedFew(), WithCompression(FedFew(), "int8")], ids=["plain", "compressed"])
def test_it_changes_the_models(method):
    assert differ(tensors(train(method)), tensors(train(method, smoothing_end=0.1)))


def test_a_method_without_smoothing_stays_as_it_is_and_a_line_says_so():
    events: list[str] = []
    found = train(FedAvg(), smoothing_end=0.25, on_round=lambda progress: events.extend(progress.events))
    assert_same(tensors(found), tensors(train(FedAvg())))
    assert events == ["smoothing_end is 0.25, but fedavg has no smoothing: it has no effect"]


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_a_prolonged_one_says_what_differs(tmp_path):
    def run(rounds, events=None, **more):
        def collect(progress):
            if events is not None:
                events.extend(event for event in progress.events if "rounds was" in event)

        return train(FedFew(most_share=1.0), rounds=rounds, smoothing_end=0.1, on_round=collect, **more)

    def stop(progress):
        return "stop" if progress.round == 3 else None

    train(FedFew(most_share=1.0), rounds=4, smoothing_end=0.1, on_round=stop, folder=tmp_path / "stopped")
    events: list[str] = []
    resumed = run(4, events, folder=tmp_path / "stopped", resume=True)
    assert_same(tensors(resumed), tensors(run(4)))
    assert events == []
    longer = run(8, events, folder=tmp_path / "stopped", resume=True)
    assert events == [
        "rounds was 4 and is 8 now: smoothing_end applies to the last quarter of 8; "
        "in the 4 rounds done it applied to the last quarter of 4"
    ]
    assert differ(tensors(longer), tensors(run(8)))


def test_refuses_a_share_of_nothing():
    with pytest.raises(ValueError, match=r"smoothing_end must be in \(0, 1\], not 0"):
        TrainConfig(smoothing_end=0)
