"""What was decoded once is read back the same; what is broken or stale is made anew."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedfew.data import cache, load
from tests.data import layouts


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return layouts.labelled(tmp_path, "a.parquet", 60, 3, site=[f"s{i % 4}" for i in range(60)])


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.rows"))


def fingerprint(path: Path) -> str:
    return load(path, partition="by:site").fingerprint()


def test_read_back_the_same_without_decoding(source: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(source)
    assert len(kept(own_cache)) == 1
    assert not list(source.parent.glob("*.rows"))  # never beside the data
    monkeypatch.setattr("fedfew.imaging.decoding.decode_image", None)
    assert fingerprint(source) == first


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "other"])
def test_a_broken_file_is_made_anew(source: Path, own_cache: Path, damage: str) -> None:
    first = fingerprint(source)
    (file,) = kept(own_cache)
    good = file.read_bytes()
    middle = len(good) // 2
    broken = {
        "cut": good[: len(good) - 100],
        "flipped": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        "emptied": b"",
        "other": b"{}" * 50,
    }
    file.write_bytes(broken[damage])
    with pytest.warns(UserWarning, match="a damaged cache file is replaced"):
        assert fingerprint(source) == first
    assert kept(own_cache)[0].read_bytes() == good


def test_a_changed_source_is_read_again(source: Path, own_cache: Path) -> None:
    first = fingerprint(source)
    layouts.labelled(source.parent, "a.parquet", 60, 2, site=[f"s{i % 4}" for i in range(60)])
    os.utime(source, ns=(1, 1))
    assert fingerprint(source) != first
    assert len(kept(own_cache)) == 2


def test_other_label_columns_are_other_data(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,a,b,c\n" + "".join(f"{i}.5,{i % 2},{i % 3 // 2},{i % 4 // 3}\n" for i in range(30)))
    for labels in (["a", "b"], ["a", "c"]):
        assert load(tmp_path / "a.csv", label=labels, clients=2, partition="iid").class_names == tuple(labels)


def test_texts_and_columns_come_back(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "text,label,site\n" + "".join(f"it is number {i}!,{'ab'[i % 2]},{i % 3 or ''}\n" for i in range(30))
    )
    assert fingerprint(tmp_path / "a.csv") == fingerprint(tmp_path / "a.csv")
    assert len(load(tmp_path / "a.csv", partition="by:site")) == 3  # a missing value is a value


def test_a_sample_is_the_same_with_and_without_the_whole_in_the_cache(source: Path, own_cache: Path) -> None:
    def sampled() -> str:
        return load(source, clients=2, partition="iid", sample=30).fingerprint()

    fresh = sampled()
    assert not kept(own_cache)
    load(source, clients=2, partition="iid")
    assert kept(own_cache)
    assert sampled() == fresh


def test_a_cache_that_cannot_be_written_costs_only_time(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDFEW_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="could not be stored"):
        assert len(load(source, partition="by:site")) == 4


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDFEW_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "fedfew"


@pytest.mark.slow
def test_ten_thousand_real_images_from_the_cache(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared / "cifar10" / "test-00000-of-00001.parquet"
    first = load(path, clients=10, partition="dirichlet:0.5")
    monkeypatch.setattr("fedfew.imaging.decoding.decode_image", None)
    again = load(path, clients=10, partition="dirichlet:0.5")
    assert np.array_equal(first.train.x.numpy(), again.train.x.numpy())
