"""Folders of images, and paths that point outside of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedfew.data import DataError, SkippedWarning
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
