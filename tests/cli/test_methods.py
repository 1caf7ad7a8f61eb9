"""``fedfew methods``."""

from __future__ import annotations

import json

import pytest

from fedfew.methods import METHODS
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")


def test_methods_lists_all_and_explains_one() -> None:
    listed = call("methods").stdout
    assert all(name in listed for name in METHODS)
    one = call("methods", "fedfew").stdout
    assert "--weigh-samples" in one
    assert "adapted:" in one
    document = json.loads(call("methods", "--json").stdout)
    assert list(document) == list(METHODS)
    settings = json.loads(call("methods", "fedfew", "--json").stdout)["fedfew"]["settings"]
    assert {key: value for key, value in settings[3].items() if key != "about"} == {
        "name": "normalise",
        "value": "true or false",
        "default": True,
        "published": False,
    }
    assert "did you mean 'ditto'?" in refused("methods", "dito")
