"""Training settings: declared once, validated, and the same under every name."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import numpy as np
import pytest
import torch

import fedfew
from fedfew.config import LocalTraining, TrainConfig, defaults
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.training.settings import Settings
from tests.helpers import federation


def test_train_takes_every_setting_and_says_what_it_means():
    shown = inspect.signature(fedfew.train).parameters
    for f in fields(TrainConfig):
        assert shown[f.name].default == f.default
        assert f"{f.name}: {f.metadata['about']}" in fedfew.train.__doc__


def test_every_setting_has_a_description_a_panel_and_a_default():
    for f in fields(TrainConfig):
        assert f.metadata["about"].endswith(".")
        assert f.metadata["panel"]
    assert set(defaults()) == {f.name for f in fields(TrainConfig)}


@pytest.mark.parametrize("cls", [Settings, DeploymentConfig])
def test_the_command_line_and_flower_share_the_declarations(cls):
    own = {f.name: f for f in fields(cls)}
    for f in fields(TrainConfig):
        assert own[f.name].metadata["allowed"] == f.metadata["allowed"], f.name


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"lr": 0}, "lr must be a finite number > 0, not 0"),
        ({"lr": "fast"}, "lr must be a finite number > 0, not 'fast'"),
        ({"rounds": 1.5}, "rounds must be a whole number ≥ 1, not 1.5"),
        ({"rounds": True}, "rounds must be a whole number ≥ 1, not True"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), not 1.0"),
        ({"participation": 0.0}, r"participation must be in \(0, 1\], not 0.0"),
        ({"augment": "crop"}, "augment must be none, flip or crop-flip, not 'crop'"),
        ({"chunk": 0}, "chunk must be a whole number ≥ 1, not 0"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(settings, answer):
    with pytest.raises(ValueError, match=answer):
        TrainConfig(**settings)


def test_numbers_of_numpy_and_torch_are_settings_like_others(tmp_path):
    """As a sweep over np.linspace gives them; they must be recorded, too."""
    given = {"rounds": np.int64(2), "lr": np.float64(0.125), "momentum": np.float32(0.5), "clip_gradient": torch.tensor(2.0)}
    method = fedfew.FedFew(models=np.int64(2), mu=np.float32(0.25))
    run = fedfew.train(federation(), "linear", method, engine="stacked", folder=tmp_path / "run", **given)
    plain = {name: value.item() for name, value in given.items()}
    expected = fedfew.train(federation(), "linear", fedfew.FedFew(models=2, mu=0.25), engine="stacked", **plain)
    assert (run.history.served_loss == expected.history.served_loss).all()
    assert run.settings == expected.settings
    assert fedfew.load(tmp_path / "run").settings == expected.settings
    assert type(TrainConfig(lr=np.float64(0.1)).lr) is float


def test_hyperparameters_of_another_kind_are_refused():
    for settings, answer in (
        ({"scale_free": "false"}, "fedfew: scale_free must be True or False, not 'false'"),
        ({"preference": 1.0}, "fedfew: preference must be None or a list of numbers, one per client, not 1.0"),
        ({"ideal": "low"}, "fedfew: ideal must be None or a list of numbers, one per client, not 'low'"),
    ):
        with pytest.raises(ValueError, match=re.escape(answer)):
            fedfew.FedFew(**settings)
    assert fedfew.FedFew(preference=np.array([1.0, 2.0])) == fedfew.FedFew(preference=(1.0, 2.0))


def test_a_hyperparameter_given_to_train_is_answered_with_where_it_belongs():
    answer = "models is a setting of the method, not of train: give it with the method, method=FedFew(models=2)"
    for method in ("fedfew", fedfew.FedFew()):
        with pytest.raises(ValueError, match=re.escape(answer)):
            fedfew.train(federation(), "linear", method, models=2)


def test_a_name_that_is_no_setting_is_answered_with_the_nearest_one():
    with pytest.raises(ValueError, match="there is no setting of train called 'batchsize'; did you mean 'batch_size'"):
        fedfew.train(federation(), "linear", batchsize=4)


def test_a_config_with_changes_is_the_config_with_those_settings():
    base = TrainConfig(rounds=2, lr=0.3, seed=5)
    a = fedfew.train(federation(), "linear", "fedavg", config=base, lr=0.1)
    b = fedfew.train(federation(), "linear", "fedavg", rounds=2, seed=5, lr=0.1)
    assert a.settings["lr"] == 0.1
    assert (a.history.served_loss == b.history.served_loss).all()


def test_recorded_settings_of_an_older_version_are_read_with_the_defaults():
    assert LocalTraining.taken_from({"lr": 0.1, "batch_size": 4, "participation": 0.5}) == LocalTraining(0.1, 4)
