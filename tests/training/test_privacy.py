"""Differential privacy of clients: the sensitivity of the sum, ε against independent formulas, and an audit."""

from __future__ import annotations

import builtins
import json
import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp
from scipy.stats import beta, norm
from torch import Tensor, nn

import fedfew
from fedfew.config import TrainConfig
from fedfew.methods import IFCA, FedAMP, FedAvg, FedFew, FedMTL
from fedfew.methods.attacks import Attacked
from fedfew.report import tables
from fedfew.report.page import document
from fedfew.report.page.record import InMemory
from fedfew.stack import Tree, leaves, named_leaves, tree_map
from fedfew.training import privacy
from fedfew.training.privacy import PrivateMean, contribution, counted_noise, epsilon, secret_noise
from tests.helpers import federation
from tests.training.small import train

DATA = federation((9, 12, 7, 11, 10, 8))
PRIVATE = {"data": DATA, "dp_noise": 1.0, "dp_delta": 0.01}


def state(run: fedfew.Run) -> Tensor:
    return torch.cat([t.double().flatten() for _, t in named_leaves(run.state.server)])


# -- ε ------------------------------------------------------------------------------------------------------------------------


def analytic_gaussian(noise: float, delta: float) -> float:
    """The exact ε of one Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""

    def excess(eps: float) -> float:
        return norm.cdf(0.5 / noise - eps * noise) - math.exp(eps) * norm.cdf(-0.5 / noise - eps * noise) - delta

    return brentq(excess, 0, 200)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_without_sampling_it_is_just_above_the_exact_value(noise: float, rounds: int):
    """T rounds with noise z are one with noise z/√T."""
    config = TrainConfig(dp_noise=noise, dp_delta=1e-5)
    exact = analytic_gaussian(noise / math.sqrt(rounds), 1e-5)
    assert exact < epsilon(config, rounds) < 1.15 * exact


def divergence(noise: float, q: float, order: int) -> float:
    """Rényi divergence of the sampled Gaussian at a whole order (Mironov et al. 2019, Section 3.3)."""
    k = np.arange(order + 1)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = choose + (order - k) * math.log1p(-q) + k * math.log(q) + (k * k - k) / (2 * noise**2)
    return float(logsumexp(terms)) / (order - 1)


def by_integer_orders(noise: float, q: float, rounds: int, delta: float) -> float:
    """Converted by Proposition 12 of Canonne et al. 2020."""
    return min(
        rounds * divergence(noise, q, order) + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order in range(2, 200)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "q", "rounds"), [(1.0, 0.1, 100), (1.3, 250 / 60000, 3600), (0.8, 0.2, 50)])
def test_with_sampling_it_is_that_of_an_independent_formula(noise: float, q: float, rounds: int):
    config = TrainConfig(dp_noise=noise, dp_delta=1e-5, participation=q)
    expected = by_integer_orders(noise, q, rounds, 1e-5)
    assert 0.98 * expected <= epsilon(config, rounds) <= expected * (1 + 1e-6)  # it tries orders in between, too


def test_more_noise_fewer_rounds_and_fewer_clients_cost_less():
    base = epsilon(TrainConfig(dp_noise=1.0, participation=0.2), 50)
    assert epsilon(TrainConfig(dp_noise=2.0, participation=0.2), 50) < base
    assert epsilon(TrainConfig(dp_noise=1.0, participation=0.2), 25) < base
    assert epsilon(TrainConfig(dp_noise=1.0, participation=0.1), 50) < base
    assert epsilon(TrainConfig(dp_noise=1.0, participation=0.2, dp_delta=1e-3), 50) < base


# -- the mechanism ------------------------------------------------------------------------------------------------------------


def length(tree: Tree) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in leaves(tree)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]), st.floats(0.1, 10), st.floats(0.01, 100), st.booleans())
def test_one_client_changes_the_sum_by_at_most_the_clip(seed: int, models: int, clip: float, size: float, one_for_all: bool):
    """Whatever it sends and reports, added or removed; and all K models count together."""
    draw = torch.Generator().manual_seed(seed)
    tensors = 1 if one_for_all else models
    update: Tree = {
        "a": size * torch.randn(5, tensors, 3, generator=draw),
        "b": size * torch.randn(5, tensors, 2, 2, generator=draw),
    }
    logs = 5 * torch.randn(5, models, generator=draw)
    like = {"a": torch.zeros(models, 3), "b": torch.zeros(models, 2, 2)}

    def sum_of(rows: list[int]) -> Tree:
        config = TrainConfig(dp_noise=1e-30, dp_clip=clip)
        mean = PrivateMean(config, like, 5, counted_noise(0, 1))
        mean.add(torch.tensor(rows), logs[rows], None, {name: t[rows] for name, t in update.items()})  # type: ignore[index]
        return tree_map(lambda t: 5 * t, mean.combine().mean())

    difference = length(tree_map(torch.sub, sum_of([0, 1, 2, 3, 4]), sum_of([0, 1, 2, 3])))
    assert difference <= clip * (1 + 1e-4)
    alone = contribution(update, logs.softmax(1), clip)
    assert difference == pytest.approx(length(tree_map(lambda t: t[4], alone)), rel=1e-3, abs=1e-4 * clip)


@pytest.mark.parametrize("number", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("part", [1e-6, 1])
def test_no_number_format_lets_a_client_beyond_the_clip(number: torch.dtype, part: float):
    """Neither in its contribution, with the largest numbers there are, nor in a sum that is rounded as it grows."""
    largest = part * torch.finfo(number).max
    update: Tree = {"x": (largest * torch.rand(2, 1, 1000, generator=torch.Generator().manual_seed(0))).to(number)}
    for clip in (1e-3, 1.0):
        sent = contribution(update, torch.ones(2, 1), clip)
        assert [length(tree_map(lambda t, i=i: t[i], sent)) for i in (0, 1)] == pytest.approx([clip, clip], rel=1e-6)
        config, like, sums = TrainConfig(dp_noise=1e-30, dp_clip=clip), {"x": torch.zeros(1, 1000, dtype=number)}, []
        for clients in (100, 101):
            mean = PrivateMean(config, like, 1, counted_noise(0, 1))
            for i in range(clients):
                mean.add(torch.tensor([i]), torch.zeros(1, 1), None, tree_map(lambda t, i=i: t[[i % 2]], update))
            sums.append(mean.combine().mean())
        assert length(tree_map(torch.sub, *sums)) <= clip * (1 + 1e-4)


def test_processes_that_hold_a_part_of_the_clients_each_agree():
    update, like = {"x": torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))}, {"x": torch.zeros(2, 3)}
    config, logs = TrainConfig(dp_noise=0.5), torch.zeros(5, 2)
    whole, joined = (PrivateMean(config, like, 5, counted_noise(0, 1)) for _ in range(2))
    whole.add(torch.arange(5), logs, None, dict(update))
    for rows in torch.arange(5).split(3):
        part = PrivateMean(config, like, 5, counted_noise(0, 1))
        part.add(rows, logs[rows], None, {"x": update["x"][rows]})
        joined.merge(part.parts())
    torch.testing.assert_close(joined.combine().mean()["x"], whole.combine().mean()["x"])


def test_a_short_contribution_is_not_changed_and_counters_do_not_travel():
    update: Tree = {"x": torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]), "n": torch.tensor([[[7], [7]]])}
    w = torch.tensor([[0.5, 0.5]])
    assert contribution(update, w, 10.0)["x"].tolist() == [[[1.5, 2.0], [0.0, 0.0]]]  # type: ignore[union-attr]
    assert contribution(update, w, 1.25)["x"].tolist() == [[[0.75, 1.0], [0.0, 0.0]]]  # type: ignore[union-attr]
    assert contribution(update, w, 10.0)["n"].tolist() == [[[0], [0]]]  # type: ignore[union-attr]


@pytest.mark.parametrize("noise", [counted_noise(3, 7), secret_noise], ids=["counted", "secret"])
def test_noise_is_standard_normal_and_apart_for_every_tensor(noise):
    x = noise(0, 200_000)
    assert abs(float(x.mean())) < 0.01
    assert float(x.std()) == pytest.approx(1, abs=0.01)
    assert float((x.abs() > 1.959964).double().mean()) == pytest.approx(0.05, abs=0.003)
    assert float((x * noise(1, 200_000)).mean()) == pytest.approx(0, abs=0.01)


def test_counted_noise_follows_from_seed_and_round_and_secret_noise_from_nothing():
    assert torch.equal(counted_noise(3, 7)(0, 5), counted_noise(3, 7)(0, 5))
    assert not torch.equal(counted_noise(3, 7)(0, 5), counted_noise(3, 8)(0, 5))
    assert not torch.equal(counted_noise(3, 7)(0, 5), counted_noise(4, 7)(0, 5))
    assert not torch.equal(secret_noise(0, 5), secret_noise(0, 5))


def test_clients_are_drawn_by_themselves():
    ids = torch.arange(50)
    sizes = torch.tensor([len(privacy.drawn(0, number, ids, 0.2)) for number in range(400)]).double()
    assert float(sizes.mean()) == pytest.approx(10, abs=0.6)  # binomial: deviation of the mean 0.14
    assert float(sizes.var()) == pytest.approx(8, abs=2)  # of a fixed size it would be 0
    secret = torch.tensor([len(privacy.secretly_drawn(50, 0.2)) for _ in range(400)]).double()
    assert float(secret.mean()) == pytest.approx(10, abs=0.9)
    assert privacy.drawn(0, 1, ids, 1.0).tolist() == privacy.secretly_drawn(50, 1.0).tolist() == list(range(50))


# -- an audit -----------------------------------------------------------------------------------------------------------------


def lower_bound(without: Tensor, with_client: Tensor, delta: float) -> float:
    """ε that a mechanism with these outputs has at least, with 95 % confidence: by the attack that guesses by a threshold,
    chosen on the first half; Clopper-Pearson bounds of its errors on the second."""
    half = len(without) // 2
    thresholds = torch.cat([without[:half], with_client[:half]]).sort().values

    def gap(t: Tensor) -> float:
        false, true = float((without[:half] > t).double().mean()), float((with_client[:half] > t).double().mean())
        return math.log(max(true - delta, 1e-9) / max(false, 5 / half))  # with fewer false alarms the bound is loose

    t = max(thresholds, key=gap)
    false, true = int((without[half:] > t).sum()), int((with_client[half:] > t).sum())
    most_false = beta.ppf(0.975, false + 1, half - false)
    least_true = beta.ppf(0.025, true, half - true + 1) if true else 0.0
    return math.log(max(least_true - delta, 1e-9) / most_false)


def audited(config: TrainConfig, noise_factor: float, trials: int = 1000) -> float:
    """Rounds with and without a client that sends the same large update every time; the output in that direction."""
    update: Tree = {"x": torch.zeros(4, 1, 3)}
    update["x"][3] = 100.0  # type: ignore[index]
    outputs = []
    for rows in ([0, 1, 2], [0, 1, 2, 3]):
        found = []
        for number in range(trials):
            mean = PrivateMean(config, {"x": torch.zeros(1, 3)}, 4, counted_noise(len(rows), number))
            mean.deviation *= noise_factor
            mean.add(torch.tensor(rows), torch.zeros(len(rows), 1), None, {"x": update["x"][rows]})  # type: ignore[index]
            found.append(mean.combine().mean()["x"].sum())  # type: ignore[union-attr]
        outputs.append(torch.stack(found))
    return lower_bound(*outputs, config.dp_delta)


@pytest.mark.slow
def test_whether_a_client_took_part_is_guessed_no_better_than_epsilon_allows():
    config = TrainConfig(dp_noise=1.5, dp_delta=1e-3)
    promised = epsilon(config, 1)
    assert 0.1 < audited(config, 1.0) <= promised
    assert audited(config, 0.3) > promised  # the audit notices a third of the noise


# -- runs ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedAvg(), FedFew(models=2), IFCA(models=2)], ids=["fedavg", "fedfew", "ifca"])
def test_a_run_is_the_same_on_every_engine_in_chunks_and_after_a_resume_and_records_epsilon(method, tmp_path):
    run = train(method, **PRIVATE, participation=0.5)
    assert run.history.epsilon.tolist() == pytest.approx(
        [epsilon(TrainConfig(dp_noise=1.0, dp_delta=0.01, participation=0.5), t) for t in (1, 2, 3)]
    )
    other = train(method, **PRIVATE, participation=0.5, engine="sequential", chunk=1)
    torch.testing.assert_close(state(other), state(run))
    train(method, **PRIVATE, participation=0.5, rounds=2, folder=tmp_path)
    torch.testing.assert_close(state(train(method, **PRIVATE, participation=0.5, folder=tmp_path, resume=True)), state(run))
    assert "epsilon" not in train(method, data=DATA).history.columns


@pytest.mark.parametrize("change", [{"dp_noise": 2.0}, {"dp_clip": 0.1}, {"seed": 1}])
def test_the_settings_change_the_outcome(change):
    assert not torch.allclose(state(train(FedAvg(), **PRIVATE)), state(train(FedAvg(), **(PRIVATE | change))))


def test_delta_changes_epsilon_alone():
    first, second = (train(FedAvg(), **(PRIVATE | {"dp_delta": delta})) for delta in (0.01, 0.1))
    assert torch.equal(state(first), state(second))
    assert second.history.epsilon[-1] < first.history.epsilon[-1]


def test_with_little_noise_and_a_wide_clip_fedavg_is_the_mean_of_equal_clients():
    """By hand: every client counts 1/M, whatever its size."""
    start = state(train(FedAvg(), data=DATA, rounds=1, lr=1e-30))
    singles = [state(train(FedAvg(), data=DATA.take([i]), rounds=1)) - start for i in range(6)]
    run = train(FedAvg(), data=DATA, rounds=1, dp_noise=1e-9, dp_clip=1e3, dp_delta=0.01)
    torch.testing.assert_close(state(run) - start, torch.stack(singles).mean(0), rtol=1e-4, atol=1e-5)


def test_what_a_client_reports_has_no_effect_on_others():
    """A forged loss changes the attacker's own w, which stays uniform, and nothing else."""
    wide = {"data": DATA, "rounds": 1, "dp_noise": 1e-9, "dp_clip": 1e3, "dp_delta": 0.01}
    method = FedFew(models=2)
    honest, forged = train(method, **wide), train(Attacked(method, "forged-loss", (5,)), **wide)
    alone = train(method, **(wide | {"data": DATA.take([5, 5])}))
    start = state(train(method, data=DATA, rounds=1, lr=1e-30))
    torch.testing.assert_close(state(honest) - state(forged), (state(alone) - start) / 6, rtol=1e-3, atol=1e-5)
    assert honest.history.alpha[0].tolist() == pytest.approx([1 / 6] * 6)


def test_a_round_without_clients_moves_the_models_by_noise(tmp_path):
    options = PRIVATE | {"participation": 0.1, "rounds": 6, "seed": 2}
    lines: list[str] = []
    run = train(FedFew(models=2), **options, on_round=lambda p: lines.extend(p.events))
    empty = [line for line in lines if "no client was drawn, the models move by noise alone" in line]
    assert empty
    assert len(run.history) == 6
    number = int(empty[0].split()[1].rstrip(":"))
    assert np.isnan(run.history.losses[number - 1]).all()
    assert np.isnan(run.history.alpha[number - 1]).all()
    before = (
        state(train(FedFew(models=2), **(options | {"rounds": number - 1})))
        if number > 1
        else state(train(FedFew(models=2), data=DATA, rounds=1, lr=1e-30, seed=2))
    )
    moved = state(train(FedFew(models=2), **(options | {"rounds": number}))) - before
    assert float(moved.std()) == pytest.approx(1 / 0.6, rel=0.35)  # dp_noise · dp_clip / (0.1 · 6), of 36 numbers


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (FedAMP(), {}, "fedamp as it is set does more with updates than adding their mean"),
        (FedMTL(), {}, "fedmtl as it is set does more"),
        (FedFew(models=2, share="body"), {}, "fedfew as it is set does more"),
        (FedFew(models=2, scale_free=False), {}, "fedfew as it is set does more"),
        (FedAvg(), {"aggregator": "median"}, "aggregator must be mean where dp_noise is set, not 'median'"),
        (FedFew(), {"restart_unused": 3}, "restart_unused must be 0 where dp_noise is set"),
        (FedAvg(), {"dp_clip": 0.0}, "dp_clip must be a finite number > 0"),
        (FedAvg(), {"dp_delta": 1.0}, r"dp_delta must be in \(0, 1\)"),
    ],
)
def test_what_the_guarantee_does_not_cover_is_refused(method, changes, message):
    with pytest.raises(ValueError, match=message):
        train(method, **(PRIVATE | changes))


def test_early_stopping_is_refused():
    data = fedfew.data.load("digits", clients=4, val_share=0.2, sample=200)
    with pytest.raises(ValueError, match="early_stopping must be 0 and keep must be last where dp_noise is set"):
        train(FedAvg(), data=data, model="linear", dp_noise=1.0, keep="best")


def test_what_to_know_is_said():
    lines: list[str] = []
    train(FedAvg(), **(PRIVATE | {"dp_delta": 0.5, "rounds": 1}), on_round=lambda p: lines.extend(p.events))
    assert any("anyone who knows the seed can remove the noise" in line for line in lines)
    assert "dp_delta is 0.5, too much for 6 clients: it should be well below 1 / clients" in lines
    train(FedAvg(), data=DATA, rounds=1, dp_clip=2.0, on_round=lambda p: lines.extend(p.events))
    assert "dp_clip is 2, but dp_noise is 0: it has no effect" in lines


def test_noise_leaves_no_running_variance_below_0():
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    run = train(FedAvg(), **PRIVATE | {"dp_noise": 5.0}, model=normalised, batch_size=12)
    variance = dict(named_leaves(run.state.server))["1.running_var"]
    assert (variance == 0).any()  # where noise would have made it negative
    assert np.isfinite(run.history.served_loss).all()


def test_without_the_accountant_the_error_names_what_to_install(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest, **named):
        if name.split(".")[0] == "dp_accounting":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[privacy\]'"):
        train(FedAvg(), **(PRIVATE | {"dp_noise": 1.2345}))


def test_the_accountant_leaves_the_programs_logs_as_they_are(monkeypatch, capfd):
    """absl gives the root logger a handler with its first warning: on Flower every line was printed twice from then on."""
    monkeypatch.setattr(logging.root, "handlers", [])
    privacy._rdp(0.31, 0.123)  # orders that cannot be computed: absl warns
    assert logging.root.handlers == []
    assert capfd.readouterr().err == ""


def test_epsilon_is_on_the_terminal_the_page_and_the_model_card(tmp_path):
    run = train(FedFew(models=2), **PRIVATE, rounds=3, folder=tmp_path / "run")
    shown = f"{run.history.epsilon[-1]:.3g}"
    assert f"ε {shown} at δ 0.01" in str(tables.run_summary(run, {}).caption)
    page = document.of_run(InMemory(run.state))
    assert page["settings"][0]["title"] == "Differential privacy (δ = 0.01)"
    assert page["settings"][0]["rows"][-1] == ["ε after round 3", shown]
    folder = fedfew.export.write(run, tmp_path / "export")
    card = json.loads((folder / "card.json").read_text())
    assert card["privacy"]["epsilon"] == pytest.approx(run.history.epsilon[-1])
    assert f"(ε = {shown}, δ = 0.01) differentially private" in (folder / "README.md").read_text()
    run.state.round = 5  # as if two more rounds had been done without scores
    assert privacy.guarantee(run)["epsilon"] == pytest.approx(epsilon(TrainConfig(dp_noise=1.0, dp_delta=0.01), 5))
    open_run = train(FedFew(models=2), data=DATA, rounds=1)
    assert privacy.guarantee(open_run) is None
    assert "Privacy" not in (fedfew.export.write(open_run, tmp_path / "open") / "README.md").read_text()
