"""Training samples that clients keep apart, to check what training losses say (``check_share``)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benchmarks.compressed_updates import WithCompression

from fedfew import scalarization
from fedfew.config import TrainConfig
from fedfew.engines.packed import Pack
from fedfew.federation import Federation
from fedfew.methods import FedAvg, FedFew, confirmation
from fedfew.methods.base import Outcome, Reply
from fedfew.methods.confirmation import counted
from fedfew.training import round_events, unseen
from fedfew.training.usable import usable
from tests.methods.small import PLAIN, assert_same, differ, federation, normalised, tensors, train

LARGE = (30, 45, 24, 39)
FEW = FedFew(models=2, mu=0.02)
CHECKED = {"check_share": 0.2, "rounds": 6, **PLAIN}


def memorised(clients: int = 6) -> Federation:
    """Few samples with labels drawn at random: there is nothing to learn but the samples themselves."""
    draw = torch.Generator().manual_seed(5)
    parts = [(torch.randn(24, 4, generator=draw), torch.randint(3, (24,), generator=draw)) for _ in range(2 * clients)]
    return Federation.from_arrays(parts[:clients], parts[clients:], classes=3)


def test_how_many_are_kept_apart():
    n = torch.tensor([1, 2, 7, 29, 30, 400, 2250, 10000])
    assert unseen.counts(n, 0.05).tolist() == [0, 1, 1, 1, 2, 20, 47, 100]  # 1.45 and 1.5; √400, √2250, √10000
    assert unseen.counts(n, 0.0).tolist() == [0] * 8


def test_a_client_keeps_all_its_samples_and_trains_on_the_others():
    data = federation(LARGE)
    cut = unseen.kept_apart(data, TrainConfig(check_share=0.1), FedFew())
    assert cut.train.count.tolist() == [27, 40, 22, 35]  # without 3, 5 (4.5 is rounded up), 2 and 4
    apart = cut.train.not_seen
    assert apart is not None
    assert apart.count.tolist() == [3, 5, 2, 4]
    for client in range(4):
        before, after = data.train.of(client), [torch.cat(t) for t in zip(cut.train.of(client), apart.of(client), strict=True)]
        order = [(before[0] == x).all(1).nonzero().item() for x in after[0]]
        assert sorted(order) == list(range(LARGE[client]))
        assert torch.equal(before[1][order], after[1])
        assert order[len(order) - len(apart.of(client)[1]) :] != list(range(LARGE[client]))[-len(apart.of(client)[1]) :]
    assert cut.test is data.test
    assert data.train.unseen is None


def test_which_ones_depends_on_the_seed_and_the_client_alone():
    data = federation(LARGE)

    def apart(of: Federation, seed: int = 0):
        return unseen.kept_apart(of, TrainConfig(check_share=0.1, seed=seed), FedFew()).train

    both, alone = apart(data), apart(data.take([2]))  # as at a site
    assert torch.equal(both.take(torch.tensor([2])).not_seen.of(0)[0], alone.not_seen.of(0)[0])
    assert differ(dict(zip("xy", both.of(0), strict=True)), dict(zip("xy", apart(data, 1).of(0), strict=True)))
    twice = apart(replace(data, train=replace(data.train, y=data.train.y.flip(0), row=torch.arange(138).flip(0))))
    assert torch.equal(twice.of(0)[0], data.train.x.flip(0)[twice.row.new_tensor([137]) - twice.row[twice.rows(0)]])


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_engines_agree(spread):
    few, settings = FedFew(models=2, mu=0.2 if spread else 0.02), CHECKED | {"smoothing_spread": spread}
    stacked, *others = (tensors(train(few, memorised(), **settings, engine=e)) for e in ("stacked", "sequential", "threaded"))
    assert 0 <= stacked["history/confirmed"].min() < 1
    assert (stacked["history/confirmed"].max() > 1) == (spread > 0)
    for found in others:
        assert_same(found, stacked, 1e-4)


def test_weights_of_every_round_are_those_of_what_counts():
    run = train(FedFew(models=2, mu=0.02, weigh_samples=False, most_share=1.0), memorised(), rounds=8, check_share=0.2, **PLAIN)
    parts = [1.0, *run.history.confirmed.tolist()]
    assert min(parts) < 0.5
    for t, part in enumerate(parts[:-1]):
        alpha, w = scalarization.weights(counted(torch.from_numpy(run.history.losses[t]).double(), part), 0.02)
        torch.testing.assert_close(torch.from_numpy(run.history.alpha[t]).double(), alpha, rtol=2e-4, atol=1e-6)
        torch.testing.assert_close(torch.from_numpy(run.history.w[t]).double(), w, rtol=2e-4, atol=1e-6)
    line = next(event for event in run.state.events if event.startswith("training losses mislead"))
    number = next(t for t, part in enumerate(parts, 1) if part < 0.5)
    assert line == round_events.once(round_events.not_confirmed(parts[number - 1], number), [])[0]


@pytest.mark.slow
def test_a_spread_changes_the_weights_and_falls_with_the_smoothing():
    few, settings = FedFew(models=2, mu=0.2, weigh_samples=False, most_share=1.0), CHECKED | {"rounds": 8, "smoothing_end": 0.25}
    run = train(few, federation(LARGE), **settings, smoothing_spread=0.8)
    parts = [1.0, *run.history.confirmed.tolist()]
    assert max(parts) > 1.5
    for t, mu in enumerate([0.2] * 6 + [0.1, 0.05]):
        w = scalarization.weights(counted(torch.from_numpy(run.history.losses[t]).double(), parts[t]), mu)[1]
        torch.testing.assert_close(torch.from_numpy(run.history.w[t]).double(), w, rtol=2e-4, atol=1e-6)
    assert differ(tensors(run), tensors(train(few, federation(LARGE), **settings)))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_what_is_confirmed_does_not_depend_on_the_fall_of_the_smoothing(spread, monkeypatch):
    """Differences far below μ are believed unchecked. By a smaller μ they would be checked in the midst of the fall, where they
    are no larger than the noise of so few samples, which would then decide whether groups of clients part."""
    given = []
    real = confirmation.confirmed
    monkeypatch.setattr(confirmation, "confirmed", lambda *values: given.append(values[3:]) or real(*values))
    settings = CHECKED | {"rounds": 8, "smoothing_end": 0.25, "smoothing_spread": spread}
    run = train(FedFew(models=2, mu=0.2, weigh_samples=False), federation(LARGE), **settings)
    assert given == [(0.2, spread)] * 8
    assert len(run.history.confirmed) == 8


def test_a_spread_without_checked_losses_has_no_effect_and_a_line_says_so():
    events: list[str] = []
    found = train(FedFew(), smoothing_spread=0.8, on_round=lambda progress: events.extend(progress.events))
    assert_same(tensors(found), tensors(train(FedFew())))
    assert "smoothing_spread is 0.8, but no losses are checked (check_share): it has no effect" in events
    with pytest.raises(ValueError, match="smoothing_spread must be a finite number ≥ 0, not -1"):
        TrainConfig(smoothing_spread=-1)


def test_the_share_changes_the_models_but_not_a_method_that_does_not_check():
    data = federation(LARGE)
    found = [tensors(train(FedFew(), data, check_share=share)) for share in (0.0, 0.05, 0.2)]
    assert differ(found[0], found[1])
    assert differ(found[1], found[2])
    events: list[str] = []
    plain = train(FedAvg(), data, check_share=0.2, on_round=lambda progress: events.extend(progress.events))
    assert_same(tensors(plain), tensors(train(FedAvg(), data)))
    assert events == [
        "check_share is 0.2, but fedavg as it is set does not weigh several whole models by their losses: it has no effect"
    ]


def test_with_differential_privacy_it_has_no_effect():
    events: list[str] = []
    private = {"dp_noise": 0.1, "dp_clip": 1.0, "rounds": 1}
    found = train(FedFew(), check_share=0.2, on_round=lambda progress: events.extend(progress.events), **private)
    assert_same(tensors(found), tensors(train(FedFew(), **private)))
    assert "check_share is 0.2, but dp_noise is set, and clients' losses are private: it has no effect" in events


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path):
    settings = CHECKED | {"smoothing_spread": 0.05, "smoothing_end": 0.5}
    whole = train(FEW, memorised(), **settings)
    assert whole.history.confirmed[3] != 1

    def stop(progress):
        return "stop" if progress.round == 4 else None

    train(FEW, memorised(), on_round=stop, folder=tmp_path, **settings)
    assert_same(tensors(train(FEW, memorised(), folder=tmp_path, resume=True, **settings)), tensors(whole))


def test_runs_in_a_pack_are_as_alone():
    def task(share: float, seed: int):
        return lambda: train(FEW, memorised(), **(CHECKED | {"check_share": share}), seed=seed, engine="stacked")

    tasks = [task(0.2, 1), task(0.2, 2), task(0.0, 1)]
    for packed, alone in zip(Pack().run(tasks), [run() for run in tasks], strict=True):
        assert_same(tensors(packed), tensors(alone), 1e-4)


@pytest.mark.slow
def test_batch_norm_kept_at_clients_and_compression_pass_the_losses_on():
    run = train(FEW, memorised(), normalised, **CHECKED, batch_size=6, batch_norm="local")
    assert run.history.confirmed.min() < 1
    run = train(WithCompression(FEW, "int8"), memorised(), **CHECKED)
    assert run.history.confirmed.min() < 1
    plain = train(WithCompression(FEW, "int8"), memorised(), **(CHECKED | {"check_share": 0.0}))
    assert run.history.bytes_up[0] - plain.history.bytes_up[0] == 6 * 2 * 4  # two more losses of 4 bytes each per client


def test_batch_norm_is_checked_against_the_samples_left():
    """24 samples, of which 4 are kept apart: batches of 19 leave a single sample of 20, batches of 23 one of 24."""
    with pytest.raises(ValueError, match="client 0, who has 20 training samples, with a batch of one"):
        train(FEW, memorised(), normalised, **CHECKED, batch_size=19)
    with pytest.raises(ValueError, match="client 0, who has 24 training samples, with a batch of one"):
        train(FEW, memorised(), normalised, **(CHECKED | {"check_share": 0.0}), batch_size=23)


def test_a_client_with_one_sample_has_nothing_to_check():
    run = train(FedFew(models=2), federation((1, 12, 9)), check_share=0.2, rounds=2, **PLAIN)
    assert run.history.left_out.tolist() == [0, 0]


@pytest.mark.parametrize("engine", ["sequential", "threaded", "stacked"])
def test_where_all_clients_have_one_sample_it_is_as_without(engine):
    data = federation((1,) * 4)
    settings = PLAIN | {"engine": engine}
    plain, checked = (train(FEW, data, check_share=share, **settings) for share in (0.0, 0.2))
    for one, other in zip(plain.models, checked.models, strict=True):
        assert_same(dict(one.state_dict()), dict(other.state_dict()))


def test_a_client_that_cannot_be_used_takes_its_losses_with_it():
    losses = torch.tensor([[1.0, 2.0], [torch.nan, torch.nan], [3.0, 4.0]])
    of = Reply({"a": torch.zeros(3, 2, 1)}, losses, torch.tensor([5, 6, 7]), 10 * losses)
    at, left = usable(Outcome(of, {}, {"a": torch.zeros(3, 2, 1)}))
    assert at.tolist() == [0, 2]
    assert left.reply.unseen is not None
    assert left.reply.unseen.tolist() == [[10, 20], [30, 40]]
