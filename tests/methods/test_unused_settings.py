"""A hyperparameter that is changed either changes the outcome, is refused, or is reported in one line as without effect."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from fedfew.methods import METHODS, make
from fedfew.methods.base import Method
from fedfew.training.run import Run
from tests.methods.alternatives import ALTERNATIVES
from tests.methods.small import SIZES, differ, federation, linear, normalised, tensors, train

CLIENTS, LAYERS = len(SIZES), 2  # of the small federation and its model

# method → settings at the end of their range, where others may lose their effect
EXTREMES: dict[str, list[dict[str, Any]]] = {
    "fedfew": [{"models": 1}, {"weigh_samples": False}],
    "apfl": [{"alpha": 0.0, "adaptive": False}, {"alpha": 1.0, "adaptive": False}],
    "cfl": [{"models": 1}, {"epsilon": 0.0}],
    "ditto": [{"lam": 0.0}],
    "fedala": [{"ala_epochs": 0}],
    "fedamp": [{"lam": 0.0}, {"lam": 0.0, "start": "own"}],
    "feddbe": [{"kappa": 0.0}, {"mean_momentum": 0.0}],
    "fedem": [{"models": 1}],
    "fedmgda": [{"epsilon": 0.0}, {"epsilon": 1.0}],
    "fedpac": [{"lam": 0.0}],
    "fedrc": [{"models": 1}],
    "fedsoft": [{"models": 1}, {"lam": 0.0}, {"sigma": 1.0}],
    "ifca": [{"models": 1}],
    "knnper": [{"lam": 0.0}, {"lam": 1.0}, {"neighbours": 1}, {"capacity": 1}],
    "mofedsam": [{"rho": 0.0}, {"beta": 1.0}],
    "pacfl": [{"models": 1}, {"basis": 1}, {"beta": 180.0}],
    "perfedavg": [{"variant": "FO"}, {"alpha": 0.0}],
    "pfedme": [{"lam": 0.0}],
    "scaffold": [{"variate": "gradient"}],
}
LIMITS = {("fedfew", "most_share"), ("pacfl", "measure"), ("cfl", "gamma")}
"""Settings whose effect depends on the data: no update is long enough for a limit, two measures lead to the same clusters."""

PAIRS = [
    (name, base, setting)
    for name, bases in EXTREMES.items()
    for base in bases
    for setting in ALTERNATIVES[name]
    if setting not in base and (name, setting) not in LIMITS
]


def lines(method: Method, layers: int = LAYERS, optimizer: str = "sgd") -> list[str]:
    return method.without_effect(CLIENTS, layers, optimizer)


@cache
def two_rounds(method: Method) -> Run:
    return train(method, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "base", "setting"), PAIRS)
def test_a_changed_setting_has_an_effect_or_is_reported(name: str, base: dict[str, Any], setting: str) -> None:
    try:
        changed = make(name, **base, **{setting: ALTERNATIVES[name][setting][1]})
    except ValueError:  # refused: tests/methods/test_every_method.py
        return
    reported = [line for line in lines(changed) if line.startswith(f"{name}: {setting} is ")]
    assert reported or differ(tensors(two_rounds(make(name, **base))), tensors(two_rounds(changed)))


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_not_reported(name: str) -> None:
    for layers in (1, 2, 20):
        assert lines(make(name), layers, "adam") == []
    for base in EXTREMES.get(name, ()):
        assert lines(make(name, **base)) == []


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("perfedavg", {"variant": "FO", "delta": 0.5}, "delta is 0.5, but variant is FO: it has no effect"),
        ("perfedavg", {"alpha": 0.0, "variant": "FO"}, "variant is FO, but alpha is 0: it has no effect"),
        ("fedala", {"layers": 9}, "layers is 9, but the model has 2 layers: it has the effect of 2"),
        ("fedala", {"layers": 1, "ala_epochs": 0}, "layers is 1, but ala_epochs is 0: it has no effect"),
        ("lgfedavg", {"shared_layers": 3}, "shared_layers is 3, but the model has 2 layers: it has the effect of 2"),
        ("fedfomo", {"models": 8}, "models is 8, but there are 5 other clients: it has the effect of 5"),
        ("knnper", {"neighbours": 7, "capacity": 6}, "neighbours is 7, but capacity is 6: it has the effect of 6"),
        ("feddbe", {"kappa": 2.0, "mean_momentum": 0.0}, "kappa is 2.0, but mean_momentum is 0: it has no effect"),
        ("cfl", {"models": 2, "epsilon": 0.0}, "models is 2, but epsilon is 0: it has no effect"),
    ],
)
def test_the_line_names_setting_value_and_reason(name: str, settings: dict[str, Any], why: str) -> None:
    assert lines(make(name, **settings)) == [f"{name}: {why}"]


def test_what_is_large_enough_is_not_reported() -> None:
    assert lines(make("fedala", layers=1)) == []
    assert lines(make("fedfomo", models=CLIENTS - 1)) == []
    assert lines(make("lgfedavg", shared_layers=2)) == []
    assert lines(make("pacfl", beta=179.0, measure="sum", models=2)) == []


def test_the_rate_of_fedala_is_of_sgd() -> None:
    assert lines(make("fedala", eta=1.0)) == []
    assert lines(make("fedala", eta=1.0), optimizer="adam") == ["fedala: eta is 1.0, but the optimizer is adam: it has no effect"]


@pytest.mark.parametrize(("model", "batch_norm", "found"), [(linear, "average", "1 layer"), (normalised, "local", "2 layers")])
def test_a_run_reports_it(model: Any, batch_norm: str, found: str) -> None:
    """Of the run's own model, also where the method is wrapped (batch_norm)."""
    events: list[str] = []
    data = federation((7, 12, 6, 10, 16, 8))  # no batch of one
    method = make("fedala", layers=3)
    train(method, data, model, rounds=1, batch_norm=batch_norm, on_round=lambda progress: events.extend(progress.events))
    assert f"fedala: layers is 3, but the model has {found}: it has the effect of {found[0]}" in events
