"""The Hugging Face hub, without a network."""

from __future__ import annotations

import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedfew.data import DataError, hub, load
from fedfew.federation import Federation
from tests.data import layouts
from tests.data.layouts import everything


def same(a: Federation, b: Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


def _fake_datasets(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = answer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


class _Split:
    """As much of datasets.Dataset as is used."""

    def __init__(self, table: pa.Table, names: list[str]) -> None:
        self.table = table
        self.features = {"img": object(), "label": types.SimpleNamespace(names=names)}

    def with_format(self, kind: str) -> pa.Table:
        assert kind == "arrow"
        return self.table


def test_from_the_hub_and_then_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(name: str) -> dict[str, _Split]:
        asked.append(name)
        rows = pa.table(
            {"img": layouts.images([layouts.picture(i, (32, 32), "RGB") for i in range(20)]), "label": [i % 2 for i in range(20)]}
        )
        return {"test": _Split(rows.slice(0, 8), ["cat", "dog"]), "train": _Split(rows.slice(8), ["cat", "dog"])}

    _fake_datasets(monkeypatch, answer)
    federation = load("cifar10", clients=2, partition="iid")
    assert asked == ["uoft-cs/cifar10"]
    assert federation.class_names == ("cat", "dog")
    assert everything(federation) == 20
    assert same(federation, load("cifar10", clients=2, partition="iid"))
    assert len(asked) == 1
    own = load("hub:someone/pets", clients=2, partition="iid", test_share=0.25)
    assert asked[1:] == ["someone/pets"]
    assert same(own, federation)


def test_offline_with_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(DataError) as told:
        load("cifar100", data_dir=tmp_path)
    for word in (
        "cifar100",
        str(tmp_path),
        "train-*.parquet and test-*.parquet",
        "fine_label",
        "datasets/uoft-cs/cifar100",
        "142 MB",
        "[hub]",
        "FEDFEW_DATA",
    ):
        assert word in str(told.value)
    with pytest.raises(DataError, match=r"not on the hub.*datasets\.simula\.no/kvasir, about 1,200 MB"):
        load("kvasir")

    def unreachable(name: str) -> None:
        raise ConnectionError("no route")

    _fake_datasets(monkeypatch, unreachable)
    with pytest.raises(DataError, match="the hub gave an error: ConnectionError: no route"):
        load("femnist")
    with pytest.raises(DataError, match="someone/pets could not be loaded"):
        load("hub:someone/pets")


def test_the_library_itself_reads_the_same(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    real = datasets.load_dataset
    files = {split: str(shared / "ag_news" / f"{split}-00000-of-00001.parquet") for split in ("train", "test")}
    monkeypatch.setattr(datasets, "load_dataset", lambda name: real("parquet", data_files=files, cache_dir=str(tmp_path)))
    assert same(load("ag-news", sample=500, clients=3), load("ag-news", sample=500, clients=3, data_dir=shared))


@pytest.fixture
def hub_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the hub's address."""
    for name in ("HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub._accepts_connections.cache_clear()
    yield lambda address: monkeypatch.setenv("HF_ENDPOINT", address)
    hub._accepts_connections.cache_clear()


def test_asking_for_an_answer(hub_at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "TIMEOUT", 300)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        hub_at(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert not hub.answers()
        hub._accepts_connections.cache_clear()
        server.listen()
        assert hub.answers()
    hub._accepts_connections.cache_clear()
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert hub.answers()  # a proxy may reach what this machine cannot


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    hub_at: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    over, answered = threading.Event(), []

    def look_up(*where: Any, **how: Any) -> None:
        answered.append(over.wait(600))
        raise OSError("name or service not known")

    hub_at("https://hub.example")
    monkeypatch.setattr(socket, "create_connection", look_up)
    monkeypatch.setattr(hub, "TIMEOUT", 0.1)
    assert not hub.answers()
    assert answered == [], "the name is still being looked up"
    over.set()


def test_without_a_network_the_library_which_retries_for_half_a_minute_is_not_asked(
    hub_at: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))  # has nothing in it that could be called
    with socket.socket() as refusing:  # it does not listen, and nobody else can
        refusing.bind(("127.0.0.1", 0))
        hub_at(f"http://127.0.0.1:{refusing.getsockname()[1]}")
        with pytest.raises(DataError, match="someone/nothing could not be loaded: the hub does not answer from here"):
            load("hub:someone/nothing")
        with pytest.raises(
            DataError, match=r"femnist: not in .*, and the hub does not answer from here\. Expected: train-\*\.parquet"
        ):
            load("femnist", data_dir=tmp_path)
