"""Going on with a finished run, and warm starts with another method or another number of models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import fedfew
from fedfew.config import TrainConfig
from fedfew.methods import FedAvg, FedFew, LocalOnly
from fedfew.training import start as starting
from fedfew.training.initialisation import fresh_models
from tests.cli.small import TINY
from tests.helpers import call
from tests.methods.small import assert_same, federation, mlp, train


def lines(**settings: Any) -> tuple[fedfew.Run, list[str]]:
    found: list[str] = []
    run = train(on_round=lambda progress: found.extend(progress.events), **settings)
    return run, found


def state(module: nn.Module) -> dict[str, Any]:
    return dict(module.state_dict())


def test_a_finished_run_goes_on_as_if_it_had_never_ended() -> None:
    settings: dict[str, Any] = {"server_optimizer": "momentum", "server_average": 0.5, "serve": "mixture"}
    short = train(FedFew(models=2), rounds=3, **settings)
    before = {name: values.copy() for name, values in short.history.arrays().items()}
    longer, told = lines(method=FedFew(models=2), rounds=6, start=short, **settings)
    whole = train(FedFew(models=2), rounds=6, **settings)
    for tree in ("server", "moments", "average", "own"):
        assert_same(getattr(longer.state, tree), getattr(whole.state, tree))
    assert np.array_equal(longer.history.served_loss, whole.history.served_loss)
    assert "start: continues after round 3" in told
    assert longer.settings["start"] == "continues after round 3"
    assert short.round == 3
    for name, values in before.items():
        np.testing.assert_array_equal(short.history[name], values)  # the run itself is as it was


def test_settings_may_change_on_the_way_and_are_listed(tmp_path: Path) -> None:
    short = train(FedAvg(), rounds=2)
    longer, told = lines(method=FedAvg(), rounds=3, start=short, lr=0.01, folder=tmp_path)
    assert any(line.startswith("start: continues after round 2, with lr ") and line.endswith("→ 0.01") for line in told)
    again = train(FedAvg(), rounds=4, lr=0.01, folder=tmp_path, resume=True)
    assert again.settings["start"] == longer.settings["start"]


def test_other_samples_of_the_same_clients_are_named() -> None:
    short, data = train(FedAvg(), rounds=1), federation()
    others = dataclasses.replace(data, train=dataclasses.replace(data.train, x=data.train.x + 1))
    _, told = lines(method=FedAvg(), rounds=2, start=short, data=others)
    assert "start: continues after round 1, with other samples than it was trained on so far" in told
    _, told = lines(method=FedAvg(), rounds=2, start=short, lr=0.01)
    assert not any("other samples" in line for line in told)


def test_private_states_are_kept_and_not_shared() -> None:
    short = train(LocalOnly(), rounds=1)
    kept = [t.clone() for t in fedfew.stack.leaves(short.state.own)]
    assert_same(train(LocalOnly(), rounds=3, start=short).state.own, train(LocalOnly(), rounds=3).state.own)
    assert all(torch.equal(a, b) for a, b in zip(kept, fedfew.stack.leaves(short.state.own), strict=True))


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"rounds": 2}, "rounds is 2, but the run to continue has done 2: give the total, more than 2"),
        ({"serve": "mixture"}, "serve is 'mixture', but the run to continue has 'best'"),
        ({"resume": True}, "start and resume exclude each other"),
    ],
)
def test_what_cannot_be_is_answered(settings: dict[str, Any], answer: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=answer):
        train(FedAvg(), start=train(FedAvg(), rounds=2), folder=tmp_path, **({"rounds": 5} | settings))


def test_validation_scores_cannot_begin_in_the_middle() -> None:
    data = fedfew.data.load("digits", clients=3, sample=90, val_share=0.2)
    settings: dict[str, Any] = {"batch_size": 10, "engine": "sequential", "device": "cpu"}
    plain = fedfew.train(data, "linear", "fedavg", rounds=1, **settings)
    for name, value, then in (("keep", "best", "last"), ("early_stopping", 3, "0")):
        with pytest.raises(ValueError, match=f"{name} is {value!r}, but the run to continue has '?{then}"):
            fedfew.train(data, "linear", "fedavg", rounds=2, start=plain, **settings, **{name: value})
    kept = fedfew.train(data, "linear", "fedavg", rounds=1, keep="best", **settings)
    assert len(fedfew.train(data, "linear", "fedavg", rounds=2, keep="best", start=kept, **settings).history) == 2
    last = fedfew.train(data, "linear", "fedavg", rounds=2, keep="last", early_stopping=9, start=kept, **settings)
    assert last.round_in_use == 2


def test_the_best_round_of_a_run_must_have_been_kept_to_be_used() -> None:
    data = fedfew.data.load("digits", clients=3, sample=90, val_share=0.2)
    settings: dict[str, Any] = {"batch_size": 10, "engine": "sequential", "device": "cpu"}
    compared = fedfew.train(data, "linear", "fedavg", rounds=1, early_stopping=9, **settings)
    with pytest.raises(ValueError, match="keep is 'best', but the run to continue has 'last', and the models of its best"):
        fedfew.train(data, "linear", "fedavg", rounds=2, early_stopping=9, keep="best", start=compared, **settings)
    kept = fedfew.train(data, "linear", "fedavg", rounds=1, keep="best", **settings)
    with pytest.raises(ValueError, match="best_by is 'accuracy', but the run to continue has 'loss', and the models that"):
        fedfew.train(data, "linear", "fedavg", rounds=2, keep="best", best_by="accuracy", start=kept, **settings)


def test_a_run_that_stopped_early_goes_on_only_with_more_patience(tmp_path: Path) -> None:
    data = fedfew.data.load("digits", clients=3, sample=90, val_share=0.2)
    settings: dict[str, Any] = {"batch_size": 10, "engine": "sequential", "device": "cpu", "lr": 20.0}
    stopped = fedfew.train(data, "linear", "fedavg", rounds=20, early_stopping=2, folder=tmp_path / "a", **settings)
    assert stopped.round < 20
    for more in (20, 40):
        with pytest.raises(ValueError, match=r"the run to continue stopped early after round .*: give a larger early_stopping"):
            fedfew.train(data, "linear", "fedavg", rounds=more, early_stopping=2, start=stopped, **settings)
    again: dict[str, Any] = settings | {"early_stopping": 2, "folder": tmp_path / "a", "resume": True}
    assert fedfew.train(data, "linear", "fedavg", rounds=20, **again).round == stopped.round
    with pytest.raises(ValueError, match=r"rounds is 40, but the run stopped early after round .* no round would be trained"):
        fedfew.train(data, "linear", "fedavg", rounds=40, **again)
    longer = fedfew.train(data, "linear", "fedavg", rounds=40, early_stopping=9, start=stopped, **settings)
    assert longer.round > stopped.round


@pytest.mark.parametrize(
    ("before", "then", "answer"),
    [
        ({}, {"check_share": 0.1}, "check_share is 0.1, but the run to continue has 0.0, and other columns in its history"),
        ({"check_share": 0.1}, {}, "check_share is 0.0, but the run to continue has 0.1"),
        ({}, {"dp_noise": 1.0}, "dp_noise is 1.0, but the run to continue has 0.0, and other columns in its history"),
        ({"dp_noise": 1.0}, {"dp_noise": 9.0}, "dp_noise is 9.0, but the run to continue has 1.0, and its ε is counted for one"),
        (
            {"dp_noise": 1.0, "participation": 0.5},
            {"dp_noise": 1.0},
            "participation is 0.7, but the run to continue has 0.5, and its ε",
        ),
    ],
)
def test_columns_and_the_privacy_of_a_run_cannot_change_on_the_way(
    before: dict[str, Any], then: dict[str, Any], answer: str
) -> None:
    run = train(FedFew(models=2), rounds=1, **before)
    with pytest.raises(ValueError, match=answer):
        train(FedFew(models=2), rounds=2, start=run, **then)


def test_a_check_without_effect_may_change_on_the_way() -> None:
    assert train(FedAvg(), rounds=2, check_share=0.1, start=train(FedAvg(), rounds=1)).round == 2


def test_with_differential_privacy_a_warm_start_says_what_epsilon_counts() -> None:
    before = train(FedAvg(), rounds=1, dp_noise=1.0)
    for start in (before, before.models):
        _, told = lines(method=FedFew(models=2), rounds=1, dp_noise=1.0, start=start)
        assert any(line.startswith("start: ") and "; ε counts the rounds of this run alone" in line for line in told)


# -- warm starts -------------------------------------------------------------------------------------------------------------


def test_fewer_models_are_the_most_used() -> None:
    three = train(FedFew(models=3), rounds=2)
    three.state.choice = torch.tensor([2, 2, 0, 2, 0, 1][: len(three.choice)] + [2] * (len(three.choice) - 6))
    begun = starting.beginning(three, {**three.settings, "method": FedFew(models=2).settings()}, TrainConfig())
    assert [state(m)["0.weight"].sum().item() for m in begun.models] == [
        state(three.models[k])["0.weight"].sum().item() for k in (2, 0, 1)
    ]
    assert begun.line == (
        "starts with the 3 models of fedfew after round 2, the most used first; it does not continue that run, since the "
        "method or its hyperparameters differ"
    )


def test_of_mixtures_the_models_of_the_largest_weight_come_first() -> None:
    two = train(FedFew(models=2), rounds=1, serve="mixture")
    two.state.mixture = torch.tensor([[0.2, 0.8]]).expand(len(two.choice), 2)
    begun = starting.beginning(two, {**two.settings, "method": FedAvg().settings()}, TrainConfig())
    assert_same(state(begun.models[0]), state(two.models[1]))


def test_more_models_are_copies_a_tenth_of_the_way_to_a_new_initialisation() -> None:
    two = train(FedFew(models=2), rounds=1).models
    initial = fresh_models(mlp, 0, torch.device("cpu"))
    fresh = starting.fresh(two, mlp, initial, torch.device("cpu"))
    assert_same(fresh(1), state(two[1]))
    by_hand = {name: 0.9 * t + 0.1 * initial(3)[name] for name, t in state(two[1]).items()}  # the fourth is a copy of the second
    for name, t in by_hand.items():
        torch.testing.assert_close(fresh(3)[name], t)
    assert_same(fresh(3), fresh(3))


def test_a_warm_start_begins_with_the_models_given() -> None:
    before = train(FedFew(models=2), rounds=4)
    run, told = lines(method=FedFew(models=3), rounds=1, start=before, lr=1e-9)
    most_used = torch.bincount(before.choice, minlength=2).argsort(descending=True, stable=True)
    for k in range(2):
        for name, t in state(run.models[k]).items():
            torch.testing.assert_close(t, state(before.models[most_used[k]])[name], atol=1e-6, rtol=0)
    assert run.round == 1
    assert len(run.history) == 1
    assert any(line.startswith("start: starts with the 2 models of fedfew after round 4") for line in told)
    one, told = lines(method=FedAvg(), rounds=1, start=before.models[:1], lr=1e-9)
    assert "start: starts with the model given" in told
    torch.testing.assert_close(state(one.models[0])["0.weight"], state(before.models[0])["0.weight"], atol=1e-6, rtol=0)


def test_other_clients_or_models_are_reasons_not_to_go_on() -> None:
    run = train(FedAvg(), rounds=1)
    same = run.settings
    fewer = {**same, "federation": {**same["federation"], "clients": 2}}
    assert f"it has {len(federation())} clients, not 2" in starting.beginning(run, fewer, TrainConfig()).line
    other = {**same, "model": "mlp"}
    assert ", not mlp" in starting.beginning(run, other, TrainConfig()).line
    part = {**same, "freeze": "0"}
    assert "another part of the model is trained" in starting.beginning(run, part, TrainConfig()).line
    run.state.sites = {"run": "abc"}
    assert "it was made on a network" in starting.beginning(run, same, TrainConfig()).line


def test_models_that_do_not_fit_or_are_not_there_are_answered() -> None:
    with pytest.raises(ValueError, match=r"start: 0.weight of the model given has the shape \[3, 3\], but the run's model"):
        train(FedAvg(), start=[nn.Sequential(nn.Linear(3, 3))])
    with pytest.raises(ValueError, match=r"start: 0\.weight of the model given is not there"):
        train(FedAvg(), start=[nn.Linear(3, 3)])
    for start in ([], "runs/digits", nn.Sequential(nn.Linear(4, 3)), [3]):
        with pytest.raises(ValueError, match=r"start must be a run, as fedfew.load\(folder\), or a list of modules"):
            train(FedAvg(), start=start)
    with pytest.raises(ValueError, match="start is a run of local, which has no models to start with"):
        train(FedAvg(), start=train(LocalOnly(), rounds=1))


def test_frozen_parameters_come_with_the_models() -> None:
    def half_frozen() -> nn.Module:
        module = mlp()
        module[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
        return module

    trained = train(FedAvg(), model=half_frozen, rounds=1, seed=5).models
    run = train(FedAvg(), model=half_frozen, rounds=1, seed=6, start=trained)
    assert torch.equal(state(run.models[0])["0.weight"], state(trained[0])["0.weight"])


@pytest.mark.usefixtures("here")
def test_from_the_command_line() -> None:
    call("run", *TINY, "--models", "2", "--folder", "a")
    assert (
        "start: continues after round 2"
        in call("run", *TINY, "--models", "2", "--rounds", "4", "--start", "a", "--folder", "b").stdout
    )
    assert fedfew.load("b").round == 4
    out = call("run", *TINY, "--method", "fedavg", "--start", "a", "--folder", "c").stdout
    assert "start: starts with the 2 models of fedfew after round 2" in out
    assert yaml.safe_load(Path("c/config.yaml").read_text())["start"] == "a"
    assert "start:" not in call("run", "--resume", "--folder", "c", "--rounds", "3").stdout
    assert yaml.safe_load(Path("c/config.yaml").read_text())["start"] == "a"
    call("run", "--config", "c/config.yaml", "--rounds", "3", "--folder", "d")
    for name in ("served_loss", "adapted_loss"):
        assert np.array_equal(fedfew.load("c").history[name], fedfew.load("d").history[name])
