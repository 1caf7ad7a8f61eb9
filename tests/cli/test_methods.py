"""``fedfew methods``."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from fedfew.methods import METHODS
from fedfew.methods.base import FAMILIES
from tests.helpers import call, refused
from tests.methods.tiers import tiered

pytestmark = pytest.mark.usefixtures("here")


def test_methods_lists_all_and_explains_one() -> None:
    listed = call("methods").stdout
    assert all(name in listed for name in METHODS)
    one = call("methods", "fedfew").stdout
    assert "--weigh-samples" in one
    assert "adapted:" in one
    assert "--mu             a number; default 0.2; with --published 0.01" in one
    assert "--published      true or false; default False " in one
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


def test_methods_are_grouped_by_family(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(METHODS["fedavg"]):  # type: ignore[misc]  # a type from a table
        """All of FedAvg."""

        name = "mine"

    monkeypatch.setitem(METHODS, "mine", Mine)
    listed = call("methods").stdout
    titles = [family for family in FAMILIES if f"\n{family}\n" in f"\n{listed}"]
    assert titles == ["few models", "one model", "personal parts", "one model per client"]
    one_model = listed[listed.index("\none model\n") : listed.index("personal parts")]
    assert "fedprox" in one_model
    assert "ditto" not in one_model
    assert "All of FedAvg." in one_model
    assert one_model.count("the baseline") == 1  # FedAvg's, which a method derived from it does not inherit
    assert "when to use it" not in call("methods", "mine").stdout
    assert METHODS["fedavg"].when in " ".join(call("methods", "fedavg").stdout.split())
    document = json.loads(call("methods", "--json").stdout)
    assert (document["mine"]["when"], document["mine"]["family"]) == ("", "one model")
    assert document["ditto"]["when"] == METHODS["ditto"].when


@pytest.mark.parametrize("name", tiered())
def test_no_markup_of_docstrings_is_printed(name: str) -> None:
    for out in (call("methods", name).stdout, call("methods", name, "--json").stdout):
        assert "``" not in out
        assert ":meth:" not in out
        assert ":class:" not in out
