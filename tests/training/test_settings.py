"""Settings from flags, files and recommendations."""

from __future__ import annotations

import fedfew
from fedfew.training.resolve import resolve
from fedfew.training.settings import RECOMMENDED, TYPES


def test_recommended_settings_exist() -> None:
    for values in RECOMMENDED.values():
        assert set(values) <= set(TYPES)
    assert set(RECOMMENDED) <= set(fedfew.data.names())


def test_a_method_may_be_a_name_with_its_settings_beside_it() -> None:
    settings = resolve({}, {}, {"method": "fedfew", "models": 5, "preference": [1, 2]})
    assert settings.method_settings == {"models": 5, "preference": (1.0, 2.0)}


def test_settings_of_another_method_do_not_survive_a_change_of_method() -> None:
    assert resolve({"method": "fedavg"}, {}, {"method": {"name": "fedfew", "models": 4}}).method_settings == {}
