"""What every group of settings can do: refuse values that are not allowed, and name settings that have no effect."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fedfew.util.validated import setting, validate, with_plain_numbers

DATA, TRAINING, COMPUTE = "Data", "How to train", "Hardware, scoring and checkpoints"  # panels of --help
data_setting, train_setting, compute_setting = (partial(setting, panel=panel) for panel in (DATA, TRAINING, COMPUTE))


@dataclass(frozen=True)
class Group:
    """A group of settings: the fields of a frozen dataclass."""

    def __post_init__(self) -> None:
        with_plain_numbers(self)
        validate(self)

    def changed(self, name: str) -> bool:
        """Has this setting another value than its default?"""
        return bool(getattr(self, name) != self.__dataclass_fields__[name].default)

    def without_effect(self) -> list[str]:
        """Settings that do nothing beside the others, one line each."""
        return []
