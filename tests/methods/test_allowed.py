"""Types of hyperparameters, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from fedfew.methods import FedAvg
from fedfew.methods.allowed import AtLeastOne, LayerName, NotNegative, NumberOfModels, rules


@dataclass(frozen=True)
class Mine(FedAvg):
    pull: NotNegative = 0.1
    steps: AtLeastOne | None = None
    layer: LayerName | None = None
    kind: Literal["a", "b", "c"] = "a"
    models: NumberOfModels = 2
    fast: bool = False
    label: str = ""


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("pull", -1.0, "a finite number ≥ 0"),
        ("pull", True, "a finite number ≥ 0"),
        ("steps", 0, "None or a whole number ≥ 1"),
        ("layer", 3, "None or the name of a layer"),
        ("kind", "d", "'a', 'b' or 'c'"),
        ("models", 1.5, "a whole number ≥ 1"),
        ("fast", "no", "True or False"),
    ],
)
def test_the_error_names_setting_value_and_what_is_right(setting: str, value: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"^fedavg: {setting} must be {wanted}, not {value!r}$"):
        Mine(**{setting: value})  # type: ignore[arg-type]


def test_what_is_allowed_passes() -> None:
    Mine(pull=0, steps=1, layer="0", kind="c", models=3, fast=True, label="anything").check_against(3)
    with pytest.raises(ValueError, match=r"models must be at most the number of clients \(2\), not 3"):
        Mine(models=3).check_against(2)
    assert "label" not in rules(Mine)


def test_a_class_whose_annotations_are_not_known_outside_is_checked_where_possible() -> None:
    Hidden = Literal["x", "y"]  # a type, known in this function only

    @dataclass(frozen=True)
    class Inner(FedAvg):
        kind: Hidden = "x"
        fast: bool = False

    assert Inner(kind="z").kind == "z"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fast must be True or False"):
        Inner(fast="no")  # type: ignore[arg-type]
