"""Decoding images."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedfew.data import DataError, SkippedWarning, images, workers
from fedfew.data.errors import BadRows
from fedfew.data.raw import RawData
from fedfew.imaging import process
from fedfew.imaging.process import DecodingProcess
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
    monkeypatch.setattr("fedfew.imaging.decoding.MOST_PIXELS", 200)
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


@pytest.mark.slow
def test_many_small_images_are_decoded_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one process makes of them, with images of every kind: grey and in colour, of 16 bits, one that is none."""
    rng = np.random.default_rng(0)
    for i in range(600):
        (tmp_path / f"c{i % 2}").mkdir(exist_ok=True)
        shape = (8, 8) if i % 2 == 0 else (8, 8, 3)  # c0, and so the first chunk, is grey: colours are found in another process
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / f"c{i % 2}" / f"{i // 2:03}.png")
    (tmp_path / "c1" / "222.png").write_bytes(sixteen_bit(4095))
    (tmp_path / "c1" / "250.png").write_bytes(b"not an image")
    with pytest.warns(SkippedWarning, match="left out 1: c1/250"):
        alone = two(tmp_path, on_bad="skip")
    there: list[DecodingProcess] = []
    decode = DecodingProcess.decode

    def watched(self: DecodingProcess, *args: Any, **kwargs: Any) -> Any:
        there.append(self)
        return decode(self, *args, **kwargs)

    monkeypatch.setattr(DecodingProcess, "decode", watched)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(images, "MANY", 0)
    monkeypatch.setenv("FEDFEW_CACHE", str(tmp_path / "another"))
    with pytest.warns(SkippedWarning, match="left out 1: c1/250"):
        together = two(tmp_path, on_bad="skip")
    assert torch.equal(together.train.x, alone.train.x)
    assert torch.equal(together.test.x, alone.test.x)
    assert together.about == alone.about
    assert len(set(there)) == 2 * 2  # the second two after colours were found
    codes = [process.process.returncode for process in dict.fromkeys(there)]
    assert codes == [-9, -9, 0, 0]  # the first two were no longer wanted, the others have ended by themselves


def many(count: int = 600) -> RawData:
    """Grey images of 4×4 pixels: that of a row holds the remainder of its number divided by 251."""
    files = [layouts.picture(value, (4, 4)) for value in range(251)]
    return RawData("image", labels=[0] * count, where=lambda row: f"row {row + 1}", image=lambda row: files[row % 251])


def decoded(raw: RawData) -> list[int]:
    return images.decode_images(raw, np.arange(len(raw)), None, BadRows("raise"), "pictures").pixels[:, 0, 3, 3].tolist()


@pytest.fixture
def in_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MANY", 0)
    monkeypatch.setattr(workers, "cores", lambda: 2)


@pytest.mark.usefixtures("in_two_processes")
def test_processes_inherit_no_lock_that_another_thread_holds() -> None:
    """The lock is held while processes are started, and released when they are at work: a forked one would never get it."""
    raw, lock = many(), threading.Lock()
    take, taken, at_work = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        take.wait()
        with lock:
            taken.set()
            at_work.wait()

    def image(row: int) -> bytes:
        assert raw.image is not None
        if row == 255:  # the last that is decoded here
            take.set()
            taken.wait()
        elif row > 255:
            at_work.set()
            with lock:
                return raw.image(row)
        return raw.image(row)

    results: list[list[int]] = []
    threading.Thread(target=hold, daemon=True).start()
    decoding = threading.Thread(target=lambda: results.append(decoded(replace(raw, image=image))), daemon=True)
    decoding.start()
    decoding.join(120)  # it takes a second; if it waits for the lock, it waits for ever
    assert results == [[row % 251 for row in range(600)]]


@pytest.mark.usefixtures("in_two_processes")
def test_a_process_that_dies_is_an_error_that_names_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, started = DecodingProcess.wait_until_ready, []

    def dies(self: DecodingProcess) -> bool:
        started.append(self)
        answer = ready(self)
        self.process.kill()
        return answer

    monkeypatch.setattr(DecodingProcess, "wait_until_ready", dies)
    message = r"row 257 … row 512: a process that decodes images has ended early \(signal 9, SIGKILL; .*too little memory"
    with pytest.raises(DataError, match=message):
        decoded(many())
    assert len(started) == 2
    assert all(process.process.poll() is not None for process in started)


@pytest.mark.usefixtures("in_two_processes")
def test_a_process_that_ends_by_itself_is_an_error_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROGRAM", "import sys; print('R', end='', flush=True); sys.stdin.buffer.read(1); sys.exit(3)")
    monkeypatch.setattr(process, "PATIENCE", None)  # however long it takes to end
    with pytest.raises(DataError, match=r"a process that decodes images has ended early \(exit code 3\)"):
        decoded(many())


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROGRAM", "import time; print('R', end='', flush=True); time.sleep(3600)")
    monkeypatch.setattr(process, "PATIENCE", 0)
    started = DecodingProcess()
    assert started.wait_until_ready()
    started.close()
    assert started.process.returncode == -9


def fails(*_: Any, **__: Any) -> None:
    raise OSError("no more processes")


@pytest.mark.usefixtures("in_two_processes")
@pytest.mark.parametrize(
    ("where", "name", "value", "why"),
    [
        (sys, "executable", "", "no Python interpreter that could be started again"),
        (subprocess, "Popen", fails, r"no process can be started \(no more processes\)"),
        (process, "PROGRAM", "raise SystemExit", "ended at once"),
    ],
)
def test_where_no_process_can_be_started_threads_decode(
    where: Any, name: str, value: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, value)
    with pytest.warns(UserWarning, match=f"images are decoded in threads, which is slower: .*{why}"):
        assert decoded(many()) == [row % 251 for row in range(600)]


def test_on_one_core_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MANY", 0)
    monkeypatch.setattr(workers, "cores", lambda: 1)
    monkeypatch.setattr(subprocess, "Popen", fails)
    assert decoded(many()) == [row % 251 for row in range(600)]


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
