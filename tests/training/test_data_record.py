"""Names and preprocessing that a run keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedfew
from fedfew.training import checkpoint
from fedfew.training.checkpoint import CheckpointError
from fedfew.training.data_record import DataRecord
from tests import hospitals
from tests.helpers import federation


def test_a_run_keeps_names_and_preprocessing_of_its_data(tmp_path: Path) -> None:
    data = fedfew.data.load(hospitals.write(tmp_path / "p.csv"), label="diagnosis", client="hospital")
    run = fedfew.train(data, "linear", rounds=1, engine="sequential", folder=tmp_path / "r")
    for one in (run, fedfew.load(tmp_path / "r")):
        assert one.client_names == hospitals.NAMES
        assert one.class_names == hospitals.CLASSES
        assert one.data == DataRecord(
            hospitals.NAMES, hospitals.CLASSES, "hospital", "diagnosis", ("age", "smoker"), data.preprocessing, "str"
        )
        assert one.data.preprocessing is not None


def test_without_names_clients_and_classes_are_numbers() -> None:
    run = fedfew.train(federation(), "linear", rounds=1, engine="sequential")
    assert run.data == DataRecord(label_type="int")
    assert run.client_names == ("0", "1", "2", "3")
    assert run.class_names == ("0", "1", "2")


def test_a_preprocessing_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    run = fedfew.train(federation(), "linear", rounds=1, engine="sequential")
    path = run.save(tmp_path / "r") / "state.json"
    about = json.loads(path.read_text())
    about["data"]["preprocessing"] = {"kind": "pickle"}
    path.write_text(json.dumps(about | {"own_sha256": checkpoint._own_sha256(about)}))
    with pytest.raises(CheckpointError, match="no preprocessing of kind 'pickle'"):
        fedfew.load(tmp_path / "r")


def test_a_client_is_found_by_name_and_by_number() -> None:
    named = DataRecord(client_names=("Basel", "7", "Bern"))
    assert [named.client_number(client, 3) for client in ("Basel", "7", "Bern", "0", 2)] == [0, 1, 2, 0, 2]
    assert DataRecord().client_number("2", 3) == 2
    for name in ("BASEL", "basel"):  # in a column as alone
        with pytest.raises(ValueError, match=f"client '{name}' took no part"):
            DataRecord(client_names=("Basel", "Bern")).client_numbers([name], 2)
    with pytest.raises(ValueError, match=r"client 'Genf\\x1b' took no part in the training; there are Basel, 7, Bern\."):
        named.client_number("Genf\x1b", 3)
    with pytest.raises(ValueError, match=r"client 3 took no part.*there are clients with the numbers 0 to 2\..*fedfew\.join"):
        DataRecord().client_number(3, 3)
    with pytest.raises(ValueError, match=r"n9, … \(12 in all\)"):
        DataRecord(client_names=tuple(f"n{i}" for i in range(12))).client_number("x", 12)
    with pytest.raises(ValueError, match="several clients are called 'a'"):
        DataRecord(client_names=("a", "a")).client_number("a", 2)
