"""The settings of the registered methods, read from their classes."""

from __future__ import annotations

import pytest

from fedfew.methods import METHODS
from fedfew.methods.hyperparameters import hyper_parameters


def test_every_knob_is_documented() -> None:
    for name in METHODS:
        for hyperparameter in hyper_parameters(name):
            assert hyperparameter.about, f"{name}: {hyperparameter.name} has no docstring"


def test_a_method_typed_into_a_session_has_knobs_without_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, type] = {}
    exec("from fedfew import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n", space)
    monkeypatch.setitem(METHODS, "mine", space["Mine"])
    assert [hyperparameter.name for hyperparameter in hyper_parameters("mine")] == ["published"]
