"""Folders of images, and paths that point outside of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedfew.data import DataError, SkippedWarning, load
from fedfew.data.readers.image_folder import inside
from tests.data import layouts
from tests.data.layouts import everything, two


def test_image_folders(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path / "plain")
    federation = two(tmp_path / "plain")
    assert (federation.shape, federation.class_names, everything(federation)) == ((3, 16, 16), ("kind0", "kind1", "kind2"), 24)
    for split in ("train", "test"):
        layouts.image_folder(tmp_path / "split", below=split)
    assert everything(two(tmp_path / "split")) == 48
    assert two(tmp_path / "plain", size=8).shape == (3, 8, 8)
    assert two(tmp_path / "plain", size=(1, 4, 6)).shape == (1, 4, 6)
    assert two(tmp_path / "plain", pixels="unit").train.pixels == "unit"


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "a/../../secret.png", "..\\secret.png", "C:\\secret.png", "link.png"]
)
def test_paths_that_climb_out(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    layouts.image_folder(folder, classes=2, each=4)
    (tmp_path / "secret.png").write_bytes(layouts.picture(1))
    os.symlink(tmp_path / "secret.png", folder / "link.png")
    with pytest.raises(DataError, match="points outside the folder"):
        inside(folder, name)
    (folder / "a.csv").write_text(
        "file_name,label\n" + "".join(f"kind{c}/{i}.jpg,{c}\n" for c in range(2) for i in range(4)) + f"{name},1\n"
    )
    with pytest.raises(DataError, match=r"a\.csv, row 9: the image path points outside the folder"):
        two(folder / "a.csv")
    with pytest.warns(SkippedWarning, match="left out 1"):
        assert everything(two(folder / "a.csv", on_bad="skip")) == 8
    assert inside(folder, "kind0/1.jpg") == folder / "kind0" / "1.jpg"


def test_a_linked_image_outside_the_folder(tmp_path: Path) -> None:
    folder = layouts.image_folder(tmp_path / "data", classes=2, each=4)
    (tmp_path / "secret.png").write_bytes(layouts.picture(1, (16, 16), "RGB"))
    os.symlink(tmp_path / "secret.png", folder / "kind0" / "z.png")
    with pytest.raises(DataError, match=r"kind0/z\.png: the image path points outside"):
        two(folder)


def by_client(root: Path, *, split: str = "") -> Path:
    for client, values in {"Basel": (1, 2), "Bern": (3, 4)}.items():
        for label, value in zip(("cat", "dog"), values, strict=True):
            place = root / split / client / label
            place.mkdir(parents=True)
            for i in range(4):
                (place / f"{i}.png").write_bytes(layouts.picture(value, (8, 8)))
    return root


def test_folders_of_clients(tmp_path: Path) -> None:
    federation = load(by_client(tmp_path))
    assert federation.client_names == ("Basel", "Bern")
    assert federation.class_names == ("cat", "dog")
    for client, values in enumerate(((1, 2), (3, 4))):
        for samples in (federation.train, federation.test):
            x, y = samples.of(client)
            assert [values[label] for label in y.tolist()] == x[:, 0, 0, 0].tolist()
    assert federation.about["notes"] == [
        'the 2 outer folders are clients, the 2 inner ones classes (label="outer" makes the outer ones classes)'
    ]
    assert len(load(tmp_path, clients=3, partition="iid")) == 3
    assert load(tmp_path, label="outer", clients=2, partition="iid").class_names == ("Basel", "Bern")


def test_folders_of_clients_and_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        by_client(tmp_path / "a", split=split)
    federation = load(tmp_path / "a")
    assert federation.client_names == ("Basel", "Bern")
    assert federation.test.count.tolist() == federation.train.count.tolist() == [8, 8]
    layouts.image_folder(tmp_path / "b" / "Basel", classes=2, below="train")
    layouts.image_folder(tmp_path / "b" / "Basel", classes=2, below="test")
    layouts.image_folder(tmp_path / "b" / "Bern", classes=2, below="train")
    layouts.image_folder(tmp_path / "b" / "Bern", classes=2, below="test")
    assert load(tmp_path / "b").client_names == ("Basel", "Bern")


def test_folders_below_classes_are_no_clients(tmp_path: Path) -> None:
    for label, patient in (("cat", "p1"), ("cat", "p2"), ("dog", "p3"), ("dog", "p4")):
        place = tmp_path / label / patient
        place.mkdir(parents=True)
        for i in range(4):
            (place / f"{i}.png").write_bytes(layouts.picture(i, (8, 8)))
    assert two(tmp_path).class_names == ("cat", "dog")
    inner = load(tmp_path, label="inner", clients=2, partition="iid")
    assert inner.class_names == ("p1", "p2", "p3", "p4")
    with pytest.raises(DataError, match="in a folder of images the label is a folder name"):
        two(tmp_path, label="species")
    layouts.image_folder(tmp_path / "plain", classes=2, each=4)
    with pytest.raises(DataError, match="needs two folders above every image"):
        two(tmp_path / "plain", label="inner")
