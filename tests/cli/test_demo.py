"""``fedfew demo``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedfew.cli.demo import _verdict
from tests.cli.small import PNG
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")


def test_demo() -> None:
    out = call("demo", "--rounds", "3").stdout
    assert Path("demo/demo.png").read_bytes()[:4] == PNG
    for word in ("local only", "FedAvg", "FedFew, 4 models", "270°", "worst client", "groups were"):
        assert word in out
    assert "with 0 of 2 seeds" in call("demo", "--rounds", "1", "--seeds", "2", "-o", "d.png").stdout
    assert "must end in .png" in refused("demo", "-o", "d.txt")


def test_the_verdict_of_the_demo() -> None:
    assert "The four groups were found" in _verdict([True])
    assert "Try another --seed" in _verdict([False])
    assert "with 2 of 3 seeds" in _verdict([True, False, True])


@pytest.mark.slow
def test_demo_finds_the_groups() -> None:
    document = json.loads(call("demo", "--json").stdout)
    assert document["groups_found"] == [True]
    served = {label: seeds[0]["served"]["mean"] for label, seeds in document["scores"].items()}
    assert served["FedFew, 4 models"] > max(served["local only"], served["FedAvg"]) + 0.03
