"""Decoding images."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedfew.data import DataError, SkippedWarning, images, workers
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


def test_many_small_images_are_decoded_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one process makes of them, with images of every kind: grey and in colour, of 16 bits, one that is none."""
    rng = np.random.default_rng(0)
    for i in range(600):
        (tmp_path / f"c{i % 2}").mkdir(exist_ok=True)
        shape = (8, 8) if i < 300 else (8, 8, 3)  # the first chunk is grey: colours are found in another process
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / f"c{i % 2}" / f"{i // 2:03}.png")
    (tmp_path / "c0" / "222.png").write_bytes(sixteen_bit(4095))
    (tmp_path / "c1" / "250.png").write_bytes(b"not an image")
    with pytest.warns(SkippedWarning, match="left out 1: c1/250"):
        alone = two(tmp_path, on_bad="skip")
    there: list[int] = []
    processes = workers.in_processes

    def watched(work: Callable[[int], Any], items: Sequence[int]) -> Iterator[Any]:
        there.extend(set(processes(lambda _: os.getpid(), items)))
        return processes(work, items)

    monkeypatch.setattr(workers, "in_processes", watched)
    monkeypatch.setattr(images, "MANY", 0)
    monkeypatch.setenv("FEDFEW_CACHE", str(tmp_path / "another"))
    with pytest.warns(SkippedWarning, match="left out 1: c1/250"):
        together = two(tmp_path, on_bad="skip")
    assert torch.equal(together.train.x, alone.train.x)
    assert torch.equal(together.test.x, alone.test.x)
    assert together.about == alone.about
    assert there
    assert os.getpid() not in there


@pytest.mark.parametrize(("platform", "cores", "expected"), [("linux", 2, True), ("linux", 1, False), ("darwin", 8, False)])
def test_processes_are_forked_where_that_is_safe_and_helps(
    platform: str, cores: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert workers.can_fork() is expected


def sixteen_bit(value: int, size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full(size[::-1], value, np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


def in_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    return folder


@pytest.mark.parametrize(
    ("largest", "depth", "halfway", "expected"), [(65535, 16, 32768, 128), (4095, 12, 1024, 64), (200, 8, 100, 100)]
)
def test_sixteen_bits_are_scaled_by_the_depth_of_the_whole_set(
    tmp_path: Path, largest: int, depth: int, halfway: int, expected: int
) -> None:
    values = [0, halfway] * 4 + [largest]
    in_folder(tmp_path, {f"{'ab'[i % 2]}/{i}.png": sixteen_bit(v) for i, v in enumerate(values)})
    federation = two(tmp_path)
    # 32768 · 255/65535 = 127.5…, 1024 · 255/4095 = 63.8, 100 · 255/255 = 100
    top = 200 if depth == 8 else 255
    assert layouts.pixels_of(federation).tolist() == sorted([0] * 4 + [expected] * 4 + [top])
    assert federation.shape == (1, 8, 8)
    assert federation.about["notes"] == [
        f"9 images have 16 bits per value, the largest value is {largest:,}: scaled from {depth} bits to 8"
    ]
    assert two(tmp_path, size=4).shape == (1, 4, 4)
    assert layouts.pixels_of(two(tmp_path, size=4)).tolist() == layouts.pixels_of(federation).tolist()


def test_eight_and_sixteen_bits_mixed(tmp_path: Path) -> None:
    files = {f"a/{i}.png": sixteen_bit(4095) for i in range(3)} | {f"b/{i}.png": layouts.picture(77, (8, 8)) for i in range(3)}
    federation = two(in_folder(tmp_path, files))
    assert layouts.pixels_of(federation).tolist() == [77] * 3 + [255] * 3
    assert "the other 3 have 8 bits" in federation.about["notes"][0]


def test_a_grey_file_that_comes_first_leaves_the_others_their_colours(tmp_path: Path) -> None:
    files = {"a/0.png": layouts.picture(9, (8, 8))}
    files |= {f"{'ab'[i % 2]}/{i + 1}.png": layouts.picture(i, (8, 8), "RGB") for i in range(8)}
    federation = two(in_folder(tmp_path, files))
    assert federation.shape == (3, 8, 8)
    colours = {tuple(x[:, 0, 0].tolist()) for s in (federation.train, federation.test) for x in s.x}
    assert colours == {(9, 9, 9)} | {(i, 255 - i, 7) for i in range(8)}
    assert federation.about["notes"] == [
        "1 of 9 images are grey, the others have colours: grey values repeated in three channels"
    ]
    assert two(tmp_path, size=(1, 8, 8)).shape == (1, 8, 8)
    assert "colours converted to grey" in two(tmp_path, size=(1, 8, 8)).about["notes"][0]


def test_grey_images_stay_grey_when_resized(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("L", (8, 8), 50).convert("P").save(buffer, "GIF")  # a palette of greys
    files = {f"{'ab'[i % 2]}/{i}.gif": buffer.getvalue() for i in range(4)}
    files |= {f"{'ab'[i % 2]}/{i}.png": layouts.picture(50, (8, 8)) for i in range(4)}
    federation = two(in_folder(tmp_path, files), size=4)
    assert federation.shape == (1, 4, 4)
    assert federation.about["notes"] == []


def test_transparency_is_reported(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (8, 8), (1, 2, 3, 0)).save(buffer, "PNG")
    federation = two(in_folder(tmp_path, {f"{'ab'[i % 2]}/{i}.png": buffer.getvalue() for i in range(6)}))
    assert federation.shape == (3, 8, 8)
    assert federation.about["notes"] == ["6 images have transparency, which is ignored"]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_images_of_unknown_range_are_refused(tmp_path: Path, mode: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8), 70_000, np.float32 if mode == "F" else np.int32)).save(buffer, "TIFF")
    in_folder(tmp_path, {f"{'ab'[i % 2]}/{i}.tif": buffer.getvalue() for i in range(4)})
    with pytest.raises(DataError, match="save it with 8 or 16 bits, or load an array"):
        two(tmp_path)


def test_formats_that_start_programs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript is drawn by a program that Pillow starts; a file of that kind under another name must not reach it."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "EPS")
    in_folder(tmp_path, {f"{'ab'[i % 2]}/{i}.png": buffer.getvalue() for i in range(4)})
    with pytest.raises(DataError, match="its format is none of PNG, JPEG"):
        two(tmp_path)


def test_a_decompression_bomb_is_refused_in_words(tmp_path: Path) -> None:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    layouts.image_folder(tmp_path, classes=2, each=4)
    (tmp_path / "kind0" / "a.png").write_bytes(bomb)
    with pytest.raises(DataError, match=r"kind0/a\.png: the image has more than the 50,000,000 pixels that are accepted"):
        two(tmp_path)
