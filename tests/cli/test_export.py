"""``fedfew export``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedfew
from fedfew import export
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")


def test_export_says_where_and_refuses_to_overwrite(run_folder: Path, exported: str) -> None:
    assert "already holds an export" in refused("export", str(run_folder), "-o", exported)
    told = json.loads(call("export", str(run_folder), "-o", exported, "--force", "--json").stdout)
    assert (told["models"], told["card_sha256"]) == (2, export.sha256_of_card(Path(exported)))
    card = export.read(exported).card
    assert card["data"]["train_samples"]["total"] == sum(fedfew.data.digits(4).train.count.tolist())
    assert card["model"]["dtype"] == "float32"


def test_one_model_is_counted_as_one() -> None:
    call("run", "--method", "fedavg", "--rounds", "1", "--clients", "4", "--device", "cpu", "--folder", "one")
    assert call("export", "one", "-o", "other").stdout.startswith("1 model, ")


def test_the_flower_group_has_the_same_command(run_folder: Path, exported: str) -> None:
    call("flower", "export", str(run_folder), "-o", "other")
    assert export.sha256_of_card(Path("other")) == export.sha256_of_card(Path(exported))
