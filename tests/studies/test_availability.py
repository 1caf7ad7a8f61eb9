"""Which data are here, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfew.studies import availability
from fedfew.training.settings import Settings


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No hub, no caches."""
    monkeypatch.setenv("FEDFEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("FEDFEW_DATA", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.setattr("fedfew.data.hub.answers", lambda: False)


def missing(*names: str, **settings) -> dict[str, str]:
    return availability.missing(Settings(dataset=name, **settings) for name in names)


def test_what_is_embedded_is_here():
    assert missing("digits") == {}


def test_what_is_nowhere_is_said_once_a_data_set_with_how_to_get_it(tmp_path):
    found = missing("cifar100", "kvasir", "cifar100", data_dir=str(tmp_path))
    assert list(found) == ["cifar100", "kvasir"]
    assert "the hub does not answer from here. Expected: train-*.parquet" in found["cifar100"]
    assert "https://datasets.simula.no/kvasir" in found["kvasir"]


def test_a_folder_with_files_is_enough(tmp_path):
    (tmp_path / "cifar100").mkdir()
    assert "cifar100" in missing("cifar100", data_dir=str(tmp_path))
    (tmp_path / "cifar100" / "train.parquet").write_bytes(b"")
    assert missing("cifar100", data_dir=str(tmp_path)) == {}


def test_so_is_what_was_decoded_before(tmp_path):
    from fedfew.data import cache
    from fedfew.data.finding import find
    from fedfew.data.raw import ColumnChoice

    found = find("femnist", None, ColumnChoice(excluded=("writer_id",)), {"size": None})
    path = cache.stored_at(found.key, found.name)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert missing("femnist", partition="by:writer_id") == {}
    assert "femnist" in missing("femnist", partition="iid")


def test_so_is_a_hub_that_answers_or_its_cache(tmp_path, monkeypatch):
    (tmp_path / "hub" / "datasets" / "uoft-cs___cifar100").mkdir(parents=True)
    assert missing("cifar100") == {}
    monkeypatch.setattr("fedfew.data.hub.answers", lambda: True)
    assert missing("femnist", "hub:somebody/something") == {}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids" in missing("femnist")["femnist"]
    monkeypatch.setattr("fedfew.data.hub.installed", lambda package: False)
    assert "[hub]'" in missing("hub:somebody/something")["hub:somebody/something"]


def test_files_of_the_users_own(tmp_path):
    assert "there is no file or folder" in missing("nowhere/my.csv")["nowhere/my.csv"]
    assert "there is no prepared federation" in missing("my.fed")["my.fed"]
    (tmp_path / "my.fed").write_bytes(b"")
    assert missing(str(tmp_path / "my.fed")) == {}


def test_a_tokeniser_must_be_a_folder_or_on_the_hub(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer.json").touch()
    assert (
        missing("digits", tokenizer=str(tmp_path / "tokenizer"))
        == missing("digits", tokenizer=str(tmp_path / "tokenizer.json"))
        == {}
    )
    found = missing("digits", tokenizer="someone/some-model")
    assert "as a name on the hub it cannot be had: the hub does not answer from here" in found["digits"]
