"""Files and folders whole or not at all; one process at a time in a folder."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedfew.util import files


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_replaced_whole(tmp_path: Path):
    path = tmp_path / "a.json"
    files.write_atomically(path, "old")
    files.write_atomically(path, b"new")
    assert path.read_text() == "new"
    assert listing(tmp_path) == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.json"
    files.write_atomically(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.json"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["a.json"]


def test_a_private_file_is_the_owners_alone(tmp_path: Path):
    files.write_atomically(tmp_path / "key", "secret", private=True)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_folder_is_replaced_whole(tmp_path: Path):
    for text in ("old", "new"):
        with files.folder_written_atomically(tmp_path / "run") as folder:
            (folder / "state").write_text(text)
            assert (tmp_path / "run").exists() == (text == "new")  # the old one stays until the new one is complete
    assert (tmp_path / "run" / "state").read_text() == "new"
    assert listing(tmp_path) == ["run"]


def test_a_folder_that_fails_leaves_the_old_one(tmp_path: Path):
    (tmp_path / "run").mkdir()

    def stopped_halfway() -> None:
        with files.folder_written_atomically(tmp_path / "run") as folder:
            (folder / "state").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped_halfway()
    assert listing(tmp_path) == ["run"]
    assert listing(tmp_path / "run") == []


def test_a_rename_that_fails_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state").write_text("old")
    rename = os.replace

    def fails_for_the_new(source: Path, target: Path) -> None:
        if (Path(source) / "fresh").exists():
            raise OSError("not now")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fails_for_the_new)
    with pytest.raises(OSError, match="not now"), files.folder_written_atomically(tmp_path / "run") as folder:
        (folder / "fresh").touch()
    assert (tmp_path / "run" / "state").read_text() == "old"


def test_what_was_left_unfinished_is_removed_but_no_link_is_followed(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = tmp_path / "run"
    (folder / ".partial-1").mkdir(parents=True)
    (folder / ".partial-2").touch()
    (folder / ".partial-3").symlink_to(precious)
    (folder / "round-000001").mkdir()
    files.remove_unfinished(folder)
    assert listing(folder) == ["round-000001"]
    assert listing(precious) == ["file"]


def test_the_lock_names_its_holder_and_goes_with_the_process(tmp_path: Path):
    program = f"""
from pathlib import Path
from fedfew.util.files import folder_locked
with folder_locked(Path({str(tmp_path)!r})):
    print("held", flush=True)
    input()
"""
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    answer = rf"process {other.pid} on .* is using .*: stop it, or choose another folder"
    with pytest.raises(files.FolderInUseError, match=answer), files.folder_locked(tmp_path, wait=0):
        pass
    other.kill()
    other.wait()
    with files.folder_locked(tmp_path, wait=0):
        pass


def test_a_block_within_may_lock_the_same_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused_elsewhere() -> bool:
        found = []

        def attempt() -> None:
            try:
                with files.folder_locked(tmp_path, wait=0):
                    found.append(False)
            except files.FolderInUseError:
                found.append(True)

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        return found == [True]

    monkeypatch.chdir(tmp_path.parent)
    with files.folder_locked(tmp_path, wait=0):
        with files.folder_locked(Path(tmp_path.name), wait=0):
            assert refused_elsewhere()
        assert refused_elsewhere()
        assert (tmp_path / files.HOLDER).exists()
    assert not refused_elsewhere()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_text("contents")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(precious)
    with pytest.raises(OSError, match=r".*"), files.folder_locked(tmp_path / "run", wait=0):
        pass
    assert precious.read_text() == "contents"
