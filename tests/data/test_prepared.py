"""Federations in a file: the same to the last bit, without the libraries that made them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedfew
from fedfew.data import DataError, load, read_prepared, tensorfile, write_prepared
from fedfew.data.preprocessing import to_document
from fedfew.federation import Federation, Samples
from tests.data import layouts


def assert_same(a: Federation, b: Federation) -> None:
    for f in fields(Federation):
        left, right = getattr(a, f.name), getattr(b, f.name)
        if isinstance(left, Samples):
            for part in fields(Samples):
                one, other = getattr(left, part.name), getattr(right, part.name)
                assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
                assert not isinstance(one, torch.Tensor) or one.dtype == other.dtype
        elif isinstance(left, torch.Tensor):
            assert torch.equal(left, right)
        else:
            assert left == right
    assert a.fingerprint() == b.fingerprint()


@pytest.mark.parametrize(
    "settings",
    [
        {"data": "digits"},
        {"data": "digits", "partition": "dirichlet:0.5", "clients": 5, "val_share": 0.1},
        {"data": "cifar10", "sample": 300, "clients": 3},
        {"data": "ag-news", "sample": 300, "clients": 3},
        {"data": "ham10000", "sample": 2000, "clients": 3, "pixels": "unit"},
    ],
)
def test_written_and_read_bit_for_bit(shared: Path, tmp_path: Path, settings: dict[str, object]) -> None:
    federation = load(data_dir=shared, **settings)  # type: ignore[arg-type]
    path = write_prepared(federation, tmp_path / "a.fed")
    again = load(path)
    assert_same(federation, again)
    assert again.about["seed"] == 0
    assert again.about["source_hash"]
    raw = sum(s.x.nbytes + s.y.nbytes for s in (federation.train, federation.test, federation.val) if s is not None)
    fitted = 0 if federation.preprocessing is None else len(json.dumps(to_document(federation.preprocessing)))
    assert path.stat().st_size < raw + fitted + 20_000


def test_the_same_request_writes_the_same_file(tmp_path: Path) -> None:
    files = [write_prepared(load("digits", clients=3), tmp_path / name).read_bytes() for name in ("a.fed", "b.fed")]
    assert files[0] == files[1]


def test_samples_stay_on_disk(tmp_path: Path) -> None:
    path = write_prepared(load("digits", clients=3), tmp_path / "a.fed")
    read_prepared(path)
    mapped = read_prepared(path)
    assert mapped.train.x.untyped_storage().nbytes() >= mapped.train.x.nbytes
    if Path("/proc/self/maps").exists():
        assert str(path.resolve()) in Path("/proc/self/maps").read_text()


@pytest.mark.slow
def test_no_hub_libraries_are_needed(shared: Path, tmp_path: Path) -> None:
    path = write_prepared(load("cifar10", data_dir=shared, sample=200, clients=2), tmp_path / "a.fed")
    program = f"""
import sys
for name in ("pyarrow", "PIL", "datasets", "sklearn", "matplotlib"):
    sys.modules[name] = None  # importing it now fails
from fedfew.data import load
federation = load({str(path)!r})
print(len(federation), int(federation.train.x.sum()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", str(int(load(path).train.x.sum()))]


def test_what_is_no_prepared_federation(tmp_path: Path) -> None:
    federation = load("digits", clients=3)
    with pytest.raises(ValueError, match=r"must end in \.fed"):
        write_prepared(federation, tmp_path / "a.bin")
    with pytest.raises(DataError, match="there is no prepared federation"):
        load(tmp_path / "none.fed")
    path = write_prepared(federation, tmp_path / "a.fed")
    good = path.read_bytes()
    path.write_bytes(good[:-5])
    with pytest.raises(DataError, match=r"a\.fed is damaged"):
        load(path)
    path.write_bytes(good[:-5] + b"wrong")
    with pytest.raises(DataError, match="checksum"):
        load(path)
    tensorfile.write(path, {"x": torch.zeros(2)}, {"kind": "rows"})
    with pytest.raises(DataError, match="is not a prepared federation"):
        load(path)
    tensorfile.write(path, {"x": torch.zeros(2)}, {"kind": "federation", "format": 99})
    with pytest.raises(DataError, match="format 99"):
        load(path)


@pytest.mark.parametrize("setting", [{"clients": 4}, {"sample": 5}, {"label": "y"}, {"val_share": 0.1}, {"pixels": "unit"}])
def test_a_prepared_federation_is_not_dealt_again(tmp_path: Path, setting: dict[str, object]) -> None:
    path = write_prepared(load("digits", clients=3), tmp_path / "a.fed")
    with pytest.raises(ValueError, match="partitioned and split already"):
        load(path, **setting)  # type: ignore[arg-type]


def test_chosen_clients_can_be_written(tmp_path: Path) -> None:
    layouts.labelled(tmp_path, "a.parquet", 60, 3)
    every = load(tmp_path / "a.parquet", clients=4, partition="iid")
    assert_same(every, load(write_prepared(every.take([0, 1, 2, 3]), tmp_path / "a.fed")))
    some = every.take([3, 1])
    again = load(write_prepared(some, tmp_path / "a.fed"))
    assert again.ids.tolist() == some.ids.tolist() == [3, 1]
    assert again.client_names == some.client_names
    for name, samples in some.splits.items():
        read = again.splits[name]
        assert len(read.x) == len(read.y) == int(samples.count.sum())
        for client in range(2):
            assert all(map(torch.equal, read.of(client), samples.of(client)))


def test_a_file_of_chosen_clients_holds_nothing_of_the_others(tmp_path: Path) -> None:
    """A coordinator that has all data gives each site its own."""
    (tmp_path / "a.csv").write_text(
        "hospital,age,y\n" + "".join(f"{'abc'[i % 3]},{100 * (i % 3) + i // 6},{i % 2}\n" for i in range(60))
    )
    every = load(tmp_path / "a.csv", label="y", client="hospital")
    again = load(write_prepared(every.take([1]), tmp_path / "b.fed"))
    assert again.preprocessing is not None
    document = to_document(again.preprocessing)
    assert [name for name, _ in document["clients"]] == ["b"]
    rows = {"age": [120.0, 130.0]}
    for client in ("b", 0):
        assert again.preprocessing.apply(rows, client).tolist() == every.preprocessing.apply(rows, "b").tolist()
    assert len(again.train.x) + len(again.test.x) == 20


@pytest.mark.parametrize("clients", [[2, 0], [1], [0, 0], [2, 1, 0]])
def test_a_run_of_chosen_clients_is_continued_with_their_file(tmp_path: Path, clients: list[int]) -> None:
    pairs = [(np.full((3 + i, 2), i, np.float32), np.arange(3 + i) % 2) for i in range(3)]
    chosen = Federation.from_arrays(pairs, pairs).take(clients)
    back = read_prepared(write_prepared(chosen, tmp_path / "a.fed"))
    assert back.fingerprint() == chosen.fingerprint()
    assert len({Federation.from_arrays(pairs, pairs).take(some).fingerprint() for some in ([2, 0], [0, 2], [1], [0, 1, 2])}) == 4
    settings = {"lr": 0.1, "device": "cpu", "folder": tmp_path / "run"}
    fedfew.train(chosen, "linear", "fedavg", rounds=1, **settings)
    assert fedfew.train(back, "linear", "fedavg", rounds=2, resume=True, **settings).state.round == 2


def test_the_file_has_the_permissions_of_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    path = write_prepared(load("digits", clients=3), tmp_path / "a.fed")
    assert path.stat().st_mode == (tmp_path / "new").stat().st_mode


def changed(path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> Path:
    """The file with other contents and right checksums."""
    tensors, about = tensorfile.read(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors, about)
    tensorfile.write(path, tensors, about)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, a: t["train/y"].__setitem__(3, 10), "labels of train are outside 0 … 9"),
        (lambda t, a: t["test/y"].__setitem__(3, -1), "labels of test are outside 0 … 9"),
        (lambda t, a: t["train/count"].__setitem__(2, 10**6), "starts and counts of train are outside"),
        (lambda t, a: t["train/count"].__setitem__(0, 0), "starts and counts of train are outside"),
        (lambda t, a: t["train/start"].__setitem__(0, -5), "starts and counts of train are outside"),
        (lambda t, a: t.update({"train/start": t["train/start"][:2]}), "train has 2 starts and 3 counts for 3 clients"),
        (lambda t, a: t.update({"train/count": t["train/count"].float()}), "numbers of type torch.float32, not int64"),
        (lambda t, a: t.update({"train/y": t["train/y"][:-1]}), "train has samples"),
        (lambda t, a: t.update({"test/x": t["test/x"][:, :, :4]}), "test has samples"),
        (lambda t, a: t["train/x"].__setitem__(0, float("nan")), "train has values that are not finite"),
        (lambda t, a: t.update({"train/x": t["train/x"].double()}), "train has samples of type torch.float64"),
        (lambda t, a: t.pop("test/y"), "test/y"),
        (lambda t, a: a.update(classes="ten"), "does not hold a valid federation"),
        (lambda t, a: a.update(pixels="inverted"), "pixels is 'inverted'"),
        (lambda t, a: a.update(class_names=["a"]), "class_names has 1 names, but 10 are needed"),
        (lambda t, a: a.pop("vocabulary"), "vocabulary"),
        (lambda t, a: t.update(preprocessing=tensorfile.text_tensor({"kind": "magic"})), "no preprocessing of kind 'magic'"),
    ],
)
def test_a_file_with_impossible_contents_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    path = changed(write_prepared(load("digits", clients=3), tmp_path / "a.fed"), change)
    with pytest.raises(DataError, match=words):
        load(path)


def test_token_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"word{i},{i % 2}\n" for i in range(20)))
    path = write_prepared(load(tmp_path / "a.csv", clients=2, partition="iid"), tmp_path / "a.fed")
    changed(path, lambda t, a: a.update(vocabulary=10))
    with pytest.raises(DataError, match="train has token ids outside 0 … 9"):
        load(path)
