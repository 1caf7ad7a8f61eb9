"""The study of costs: counted numbers against those known by hand."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from fedfew.methods import METHODS
from fedfew.studies import cost_claims

PARAMETERS = 878_538  # of the CNN for 32 px and 10 classes


@pytest.fixture(scope="module")
def counted():
    return cost_claims.counted()


def test_costs_by_hand(counted):
    assert set(counted) == set(METHODS)
    fedavg, fedfew, local = counted["fedavg"], counted["fedfew"], counted["local"]
    assert fedavg.bytes_down == 4 * PARAMETERS
    assert fedfew.bytes_down == 3 * 4 * PARAMETERS
    assert fedavg.steps == 45  # 60,000 · ¾ / 20 samples in batches of 50
    assert fedfew.steps == 3 * 45
    assert (fedfew.server_models, fedfew.client_models, fedfew.inference_passes) == (3, 0, 1)
    assert (local.bytes_down, local.bytes_up, local.client_models) == (0, 0, 1)


def test_the_papers_claims_hold_and_a_false_one_would_not(counted):
    assert [claim["holds"] for claim in cost_claims.claims(counted)] == [True] * 5
    assert [claim["expected"] for claim in cost_claims.claims(counted)] == pytest.approx([3, 1, 3, 3, 20 / 3])
    swapped = counted | {"fedfew": counted["fedavg"]}
    assert [claim["holds"] for claim in cost_claims.claims(swapped)] == [False, True, False, False, False]


def test_it_prints_and_keeps_what_it_counted(tmp_path, counted, monkeypatch):
    monkeypatch.setattr(cost_claims, "counted", lambda: counted)
    console = Console(record=True, width=160, quiet=False, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    assert cost_claims.study(tmp_path, console)
    text = console.export_text()
    assert "fedfew" in text
    assert text.count("holds") == 5
    assert json.loads((tmp_path / "costs.json").read_text())["costs"]["fedfew"]["steps"] == 135
