"""Flags: those of every training command, those of the chosen method, and their completion."""

from __future__ import annotations

import inspect

import pytest
from typer.testing import CliRunner

import fedfew
from fedfew.cli import app, flags
from fedfew.methods import METHODS
from fedfew.methods.hyperparameters import hyper_parameters
from fedfew.training.resolve import resolve
from fedfew.training.settings import TYPES, Settings


def test_flags_carry_the_names_and_defaults_of_train() -> None:
    arguments = inspect.signature(fedfew.train).parameters
    shared = {name: p.default for name, p in arguments.items() if name in TYPES}
    of_python = {"federation", "config", "folder", "resume", "start", "progress", "on_round", "metrics"}
    assert set(arguments) - set(shared) == of_python
    assert shared == {name: getattr(Settings, name) for name in shared}


def test_no_method_has_a_setting_that_a_flag_of_run_hides() -> None:
    taken = {*TYPES, "config", "folder", "resume", "json"}
    for name in METHODS:
        assert not taken & {hyperparameter.name for hyperparameter in hyper_parameters(name)}, name


def test_switches_and_spellings_of_the_methods_flags() -> None:
    read = flags.of_the_method(["--mu=0.5", "--no-normalise", "--loss-at", "received", "--preference", "1,2"])
    assert resolve({}, read).method_settings == {
        "mu": 0.5,
        "normalise": False,
        "loss_at": "received",
        "preference": (1.0, 2.0),
    }
    assert resolve({}, {"published": None}).method_settings == {"published": True}
    assert resolve({}, {"normalise": "off"}).method_settings == {"normalise": False}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("fedfew run --method ", set(METHODS)),
        ("fedfew run --dataset dig", {"digits"}),
        ("fedfew run --model ml", {"mlp"}),
        ("fedfew compare --methods local,if", {"local,ifca"}),
        ("fedfew methods fedp", {"fedpac", "fedper", "fedprox"}),
    ],
)
def test_names_are_completed(typed: str, expected: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1), "_FEDFEW_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, [], prog_name="fedfew", env=words)
    assert set(result.stdout.split()) == expected
