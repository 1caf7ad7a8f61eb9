"""No client takes over a round by the losses that it reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedfew
from fedfew.methods import FedAvg, FedFew, Method, Reply
from fedfew.methods.attacks import Attacked
from fedfew.training import round_events
from fedfew.training.client_weights import bounded, caps, log_factors, median_of
from fedfew.training.data_record import DataRecord
from fedfew.training.round_mean import RoundMean
from tests.helpers import federation
from tests.training.small import train


def shares(alpha: list[float], most: list[float]) -> Tensor:
    """The clients' shares after the cap."""
    log_alpha = torch.tensor(alpha, dtype=torch.float64).log()
    return (log_alpha + log_factors(log_alpha, torch.tensor(most))).softmax(0)


def test_what_a_capped_client_loses_goes_to_the_others_by_their_weights():
    torch.testing.assert_close(shares([0.8, 0.15, 0.05], [0.5] * 3), torch.tensor([0.5, 0.375, 0.125], dtype=torch.float64))


def test_a_client_that_rises_above_its_cap_when_another_is_capped_is_capped_too():
    third = 0.4 / 3
    expected = torch.tensor([0.3, 0.3, third, third, third], dtype=torch.float64)
    torch.testing.assert_close(shares([1e6, 1e3, 1.0, 1.0, 1.0], [0.3] * 5), expected)


def test_caps_that_sum_to_less_than_one_are_raised_alike():
    torch.testing.assert_close(shares([0.9, 0.1], [0.3, 0.1]), torch.tensor([0.75, 0.25], dtype=torch.float64))


def test_a_weight_beyond_any_floating_point_number_is_capped():
    log_alpha = torch.tensor([5000.0, 1.0, 1.0, -torch.inf])
    found = (log_alpha + log_factors(log_alpha, torch.full((4,), 0.5))).softmax(0)
    torch.testing.assert_close(found, torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64))


@settings(max_examples=60)
@given(st.lists(st.floats(-50, 50) | st.floats(-1e8, 1e8), min_size=2, max_size=9), st.floats(0.15, 1))
def test_no_client_is_above_its_cap_and_the_others_keep_their_proportions(log_alpha: list[float], most_share: float):
    logs = torch.tensor(log_alpha, dtype=torch.float64)
    most = caps(most_share, torch.full((len(logs),), 1 / len(logs)))
    factors = log_factors(logs, most)
    after = (logs + factors).softmax(0)
    assert bool((after <= most + 1e-7).all())  # logarithms of 1e8 have 8 digits after the point
    kept = factors == 0
    torch.testing.assert_close(after[kept] / after[kept].sum(), logs[kept].softmax(0))
    if bool((logs.softmax(0) <= most - 1e-9).all()):
        assert bool(kept.all())


def test_a_cap_is_never_below_the_share_of_samples_or_three_times_that_of_clients():
    share = torch.tensor([0.7, 0.1, 0.1, 0.1, 0.0], dtype=torch.float64)  # the last client is not in the round
    torch.testing.assert_close(caps(0.5, share)[:4], torch.full((4,), 0.75, dtype=torch.float64))
    torch.testing.assert_close(caps(0.5, share.repeat(2) / 2)[1:4], torch.full((3,), 0.5, dtype=torch.float64))
    torch.testing.assert_close(caps(0.2, share.repeat(4) / 4)[:2], torch.tensor([0.2, 0.2], dtype=torch.float64))
    torch.testing.assert_close(caps(0.1, share)[0], torch.tensor(0.75, dtype=torch.float64))
    torch.testing.assert_close(caps(0.1, torch.tensor([0.8, *[0.01] * 20]))[:2], torch.tensor([0.8, 3 / 21]).double())
    torch.testing.assert_close(caps(0.5, torch.full((10,), 0.1)), torch.full((10,), 0.5, dtype=torch.float64))


def test_losses_far_above_the_median_are_lowered_together():
    losses = torch.tensor([[0.5, 0.7], [1000.0, 1001.0], [torch.inf, 5.5]])
    expected = torch.tensor([[0.5, 0.7], [5.0, 6.0], [torch.inf, 5.0]])
    torch.testing.assert_close(bounded(losses, 5.0), expected)
    assert bounded(losses, None) is losses
    assert median_of(losses.amin(1)) == 5.5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sampled_from([0.2, 0.5, 1.0]))
def test_the_mean_does_not_depend_on_chunks(seed: int, sizes: list[int], most_share: float):
    """Against the formula: ω of capped clients scaled down, then the weighted mean."""
    draw = torch.Generator().manual_seed(seed)
    clients = sum(sizes)
    log_weights = 6 * torch.randn(clients, 2, generator=draw, dtype=torch.float64)
    log_whole = log_weights.logsumexp(1)
    update = torch.randn(clients, 2, 3, generator=draw, dtype=torch.float64)
    most = caps(most_share, torch.full((clients,), 1 / clients))
    mean = RoundMean(2, most)
    for rows in torch.randperm(clients, generator=draw).split(sizes):
        mean.add(rows, log_weights[rows], log_whole[rows], {"x": update[rows]})
    omega = (log_weights + log_factors(log_whole, most)[:, None]).softmax(0)
    found = mean.combine()
    torch.testing.assert_close(found.mean()["x"], torch.einsum("ck,ckp->kp", omega, update))
    shares = (log_weights + log_factors(log_whole, most)[:, None]).flatten().softmax(0).reshape(-1, 2).sum(0)
    torch.testing.assert_close(found.shares, shares)


def test_processes_that_hold_a_part_of_the_clients_each_agree():
    draw = torch.Generator().manual_seed(0)
    log_weights = torch.tensor([[30.0, 1.0], [0.0, 0.0], [0.3, 0.1], [25.0, 25.0], [0.0, 1.0], [0.2, 0.0]], dtype=torch.float64)
    update, most = torch.randn(6, 2, 3, generator=draw), torch.full((6,), 0.3)
    whole, parts = RoundMean(2, most), [RoundMean(2, most), RoundMean(2, most)]
    whole.add(torch.arange(6), log_weights, None, {"x": update})
    for part, rows in zip(parts, torch.arange(6).split(3), strict=True):
        part.add(rows, log_weights[rows], None, {"x": update[rows]})
    joined = RoundMean(2, most)
    for part in parts:
        joined.merge(part.parts())
    torch.testing.assert_close(joined.combine().mean()["x"], whole.combine().mean()["x"])


@pytest.fixture(scope="module")
def digits():
    return fedfew.data.load("digits", clients=8, partition="rotation", seed=0)


def accuracy_of_others(data: fedfew.Federation, method: Method) -> tuple[float, fedfew.Run]:
    run = fedfew.train(data, "mlp", method, rounds=60, lr=0.1, batch_size=10, engine="stacked", score_every=60)
    return float(run.history.served_accuracy[-1, :7].mean()), run


@pytest.mark.slow
def test_a_forged_loss_does_not_take_over_a_round(digits):
    """One of eight reports a loss of 1000 and sends zeros. Without a cap the others learn nothing."""
    honest, _ = accuracy_of_others(digits, FedFew())
    defended, run = accuracy_of_others(digits, Attacked(FedFew(), "forged-loss", (7,)))
    captured, _ = accuracy_of_others(digits, Attacked(FedFew(most_share=1.0), "forged-loss", (7,)))
    assert honest > 0.88
    assert defended > honest - 0.06
    assert captured < 0.2
    assert 1 / 8 < run.history.alpha[-1, 7] < 10 / 17  # ten times a client with the median loss, beside seven others
    assert run.history.alpha[-1].sum() == pytest.approx(1)
    assert len(run.state.events) == 3
    assert "would have 100 % of round 1, and has 50 % (most_share is 0.5)" in run.state.events[0]
    assert "1000 in round 2 counts as" in run.state.events[1]  # no median is known in round 1
    assert run.state.events[2].startswith("client 7 has most of the weight of model ")  # one that no other client prefers


@pytest.mark.slow
def test_several_forged_losses_do_not_either(digits):
    """Three of eight: with the cap alone they would have all the weight."""
    _, run = accuracy_of_others(digits, Attacked(FedFew(), "forged-loss", (5, 6, 7)))
    assert np.nanmean(run.history.served_accuracy[-1, :5]) > 0.7
    assert run.history.alpha[-1, 5:].sum() < 30 / 35


def test_the_bound_on_losses_limits_the_weight_by_losses_to_ten_times_that_of_the_median():
    method = FedFew(models=2, mu=0.3)
    bound = method.loss_bound(0.5)
    losses = torch.tensor([[0.5, 9.0], [bound, 9.0], [0.4, 9.0]], dtype=torch.float64)
    reply = Reply({}, losses, torch.ones(3))
    alpha = method.log_weights(reply, torch.full((3,), 1 / 3), torch.arange(3)).exp().sum(1)
    assert float(alpha[1] / alpha[0]) == pytest.approx(10)
    assert method.loss_bound(0.01) == pytest.approx(0.1)  # ten times the median, where that is less
    assert FedFew(models=2, mu=0.3, most_share=1.0).loss_bound(0.5) == FedFew.as_published().loss_bound(0.5) == 5.0


def test_a_client_with_most_of_a_model_is_named_once():
    run = train(FedFew(models=2, mu=0.001, most_share=1.0), data=federation(), rounds=4)
    lines = [event for event in run.state.events if "has most of the weight of model" in event]
    assert lines
    assert len({line.partition(":")[0] for line in lines}) == len(lines)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign-flip", "noise", "forged-loss"])
def test_a_defended_run_is_the_same_in_chunks_and_after_a_resume(attack: str, tmp_path):
    method = Attacked(FedFew(models=2, most_share=0.3), attack, (2,))
    whole = train(method, rounds=4)
    train(method, rounds=2, chunk=1, folder=tmp_path)
    resumed = train(method, rounds=4, chunk=1, folder=tmp_path, resume=True)
    for name in ("losses", "alpha", "served_loss"):
        np.testing.assert_allclose(whole.history[name], resumed.history[name], rtol=1e-4, atol=1e-6)


def test_a_large_loss_gets_a_line_only_where_it_would_change_a_weight():
    def lines(method):
        found = train(method, rounds=3, attack="forged-loss", participation=1.0).state.events
        return [event for event in found if "are bounded" in event]

    assert lines(FedFew())
    assert lines(FedAvg()) == []


@pytest.mark.parametrize(("alpha", "lines"), [(0.501, 0), (0.52, 1)])
def test_a_cap_gets_a_line_only_where_it_can_be_seen(alpha, lines):
    log_alpha = torch.tensor([alpha, *[(1 - alpha) / 7] * 7], dtype=torch.float64).log()
    factors = log_factors(log_alpha, caps(0.5, torch.full((8,), 0.125)))
    assert factors.count_nonzero() == 1
    assert len(round_events.of_weights(torch.arange(8), log_alpha[:, None], log_alpha, factors, 0.5, 1, DataRecord())) == lines


def test_the_line_about_a_cap_above_most_share_says_why():
    log_alpha = torch.tensor([9.0, 0.0, 0.0, 0.0])
    factors = log_factors(log_alpha, caps(0.5, torch.full((4,), 0.25)))
    line = round_events.of_weights(torch.arange(4), log_alpha[:, None], log_alpha, factors, 0.5, 1, DataRecord())[0]
    assert "the weight of client 0 is capped" in line
    assert "has 75 % (most_share is 0.5; its share of the samples or 3 / number of clients, where larger)" in line


def test_lines_about_a_client_have_its_name():
    log_alpha = torch.tensor([9.0, 0.0, 0.0, 0.0])
    factors, data = (
        log_factors(log_alpha, caps(0.5, torch.full((4,), 0.25))),
        DataRecord(client_names=("Basel", "B", "C", "\x1b[1mD")),
    )
    lines = round_events.of_weights(torch.tensor([0, 3, 2, 1]), log_alpha[:, None], log_alpha, factors, 0.5, 1, data)
    lines += round_events.bounded(torch.tensor([3]), torch.tensor([[5.0]]), [0], 1.0, 2, data)
    assert "the weight of client 0 (Basel) is capped" in lines[0]
    assert r"losses of client 3 (\x1b[1mD) are bounded: 5 in round 2" in lines[-1]
