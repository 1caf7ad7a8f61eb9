"""Fewer clients than the default number of models: as many models as clients, and a line that says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import fedfew
from fedfew.methods import METHODS, FedAvg, FedFew
from fedfew.training import default_k
from tests.helpers import call, federation, refused


@pytest.mark.parametrize("name", ["fedfew", "ifca", "clove", "cfl"])
def test_the_default_is_lowered_to_the_number_of_clients(name):
    method, line = default_k.fitting(METHODS[name](), (), 2)
    default = METHODS[name]().models
    assert default > 2
    assert method == METHODS[name](models=2)
    assert line == f"{name} has 2 models, not its default of {default}: there are only 2 clients"
    assert default_k.fitting(METHODS[name](), (), default) == (METHODS[name](), "")


@pytest.mark.parametrize("name", ["fedavg", "fedfomo"])  # without models; None, for all others
def test_other_methods_stay_as_they_are(name):
    assert default_k.fitting(METHODS[name](), (), 2) == (METHODS[name](), "")


@dataclass(frozen=True)
class ManyModels(FedAvg):
    models: int = 9


def test_a_method_that_may_have_more_models_than_clients_stays_as_it_is():
    assert default_k.fitting(ManyModels(), (), 2) == (ManyModels(), "")


def test_a_stated_number_stays():
    assert default_k.fitting(FedFew(), ["models"], 2) == (FedFew(), "")


def test_train_says_so():
    said = []
    run = fedfew.train(
        federation((9, 8)), "linear", "fedfew", rounds=1, engine="sequential", on_round=lambda state: said.extend(state.events)
    )
    assert run.settings["method"]["models"] == 2
    assert "fedfew has 2 models, not its default of 3: there are only 2 clients" in said
    with pytest.raises(ValueError, match=r"models must be at most the number of clients \(2\), not 3"):
        fedfew.train(federation((9, 8)), "linear", FedFew(), rounds=1, engine="sequential")


SHORT = ["--clients", "2", "--rounds", "1", "--sample", "80", "--device", "cpu", "--engine", "sequential"]


@pytest.mark.usefixtures("here")
def test_run_and_compare_say_so():
    line = "note: fedfew has 2 models, not its default of 3: there are only 2 clients"
    assert line in call("run", *SHORT, "--folder", "r").stdout
    assert "models: 2" in Path("r/config.yaml").read_text()
    assert line in call("compare", *SHORT, "--methods", "fedfew", "--folder", "c").stdout
    assert "models must be at most the number of clients (2)" in refused("run", *SHORT, "--models", "3")
