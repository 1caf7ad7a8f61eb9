"""Decoding images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedfew.data import DataError, SkippedWarning
from tests.data import layouts
from tests.data.layouts import everything, two


def broken_parquet(tmp_path: Path) -> Path:
    good = [layouts.picture(i) for i in range(12)]
    noise = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)).save(noise, "PNG")
    files: list[bytes | None] = [*good, b"not an image", noise.getvalue()[:300], None]
    labels = [i % 2 for i in range(15)]
    return layouts.write(tmp_path / "bad.parquet", {"image": layouts.images(files), "label": labels}, {"label": ["a", "b"]})


def test_a_corrupt_image_is_named_or_skipped(tmp_path: Path) -> None:
    file = broken_parquet(tmp_path)
    with pytest.raises(DataError, match=r'bad\.parquet, row 13: the image cannot be decoded .*on_bad="skip"'):
        two(file)
    with pytest.warns(SkippedWarning, match=r"left out 3: bad\.parquet, row 13: .*row 14: .*row 15: the image is missing"):
        federation = two(file, on_bad="skip")
    assert everything(federation) == 12
    assert len(federation.about["skipped"]) == 3
    with pytest.raises(DataError, match="row 13"):  # also when the cache knows what was left out
        two(file)


def test_images_of_different_sizes(tmp_path: Path) -> None:
    layouts.image_folder(tmp_path, classes=2, each=4)
    (tmp_path / "kind1" / "9.png").write_bytes(layouts.picture(3, (20, 30), "RGB"))
    with pytest.raises(DataError, match=r"kind1/9\.png: the image is 20×30 pixels, but the first is 16×16: size="):
        two(tmp_path)
    assert everything(two(tmp_path, size=16)) == 9
    with pytest.raises(ValueError, match="size must be a number of pixels"):
        two(tmp_path, size=(4, 8, 8))


def test_a_huge_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.data.images.MOST_PIXELS", 200)
    layouts.image_folder(tmp_path, classes=2, each=4)
    with pytest.raises(DataError, match="16×16 pixels, more than the 200 that are accepted"):
        two(tmp_path)


def test_large_images_are_decoded_in_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for c in range(2):
        (tmp_path / f"c{c}").mkdir()
        for i in range(140):
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / f"c{c}" / f"{i}.png")
    federation = two(tmp_path)
    assert everything(federation) == 280
    assert len({x.numpy().tobytes() for s in (federation.train, federation.test) for x in s.x}) == 280
