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
    (normalise,) = (setting for setting in settings if setting["name"] == "normalise")
    assert {key: value for key, value in normalise.items() if key != "about"} == {
        "name": "normalise",
        "value": "true or false",
        "default": True,
        "published": False,
    }
    assert "did you mean 'ditto'?" in refused("methods", "dito")


@pytest.mark.parametrize("name", METHODS)
def test_no_markup_of_docstrings_is_printed(name: str) -> None:
    for out in (call("methods", name).stdout, call("methods", name, "--json").stdout):
        assert "``" not in out
        assert ":meth:" not in out
        assert ":class:" not in out
