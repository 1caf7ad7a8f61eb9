"""Files and folders that are written whole or not at all, what JSON files hold, and a lock on a folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

PARTIAL = ".partial-"  # how the name of an unfinished file or folder begins
LOCK, HOLDER = ".lock", ".lock-holder.json"


class DamagedFileError(ValueError):
    """A file does not hold what was written there."""


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no file. Raises DamagedFileError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:  # not text, not JSON, or nested without end
        raise DamagedFileError(f"{path} is damaged ({error})") from None
    if not isinstance(found, dict):
        raise DamagedFileError(f"{path} is damaged: it must hold names and values")
    return found


def sha256_of(path: Path) -> str:
    """The hash of a file, which is read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, contents: str | bytes, *, private: bool = False) -> None:
    """Write a file through to the disk under another name, then rename it. private: readable by the owner alone."""
    mode = 0o600 if private else 0o666
    with (
        file_written_atomically(path) as partial,
        os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        file.write(contents.encode() if isinstance(contents, str) else contents)


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Raise ValueError now, rather than after hours of training, where this file, or files in this folder, cannot be written."""
    place = path if folder else path.parent
    try:
        if not folder and path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        while not place.exists():
            place = place.parent
        with tempfile.TemporaryFile(dir=place):  # permissions alone do not tell: a disk may be read-only
            pass
    except OSError as error:
        where = path if isinstance(error, IsADirectoryError) else place
        raise ValueError(f"{path} cannot be written: {where}: {error.strerror}") from error


@contextmanager
def file_written_atomically(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write; it becomes ``path`` if the block within ends without an error."""
    partial = _partial(path)
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        _name(error, path)
        raise


@contextmanager
def folder_written_atomically(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes ``path`` if the block within ends without an error.

    A folder that is already there is moved aside first and removed last, so that one of the two is there at any time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        _replace_folder(partial, path)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        _name(error, path)
        raise


def _name(error: BaseException, path: Path) -> None:
    """An error of writing into an open file, as of a full disk, does not say into which."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        error.filename = str(path)


def _replace_folder(fresh: Path, path: Path) -> None:
    if not path.exists():
        os.replace(fresh, path)
        return
    old = fresh.with_name(fresh.name + "-old")
    os.replace(path, old)
    try:
        os.replace(fresh, path)
    except BaseException:
        os.replace(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed left half-written in a folder; what a symbolic link points at is not touched."""
    for leftover in folder.glob(f"{PARTIAL}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f"{PARTIAL}{os.getpid()}-{uuid.uuid4().hex}")


class FolderInUseError(ValueError):
    """Another process holds the lock on a folder."""


@contextmanager
def folder_locked(folder: Path, wait: float = 30.0) -> Iterator[None]:
    """Hold the lock on a folder while the block within runs; the operating system releases it when the process ends.

    A block within may lock the same folder again. wait: seconds to wait for the process that holds it now.
    """
    from filelock import FileLock, Timeout  # loads slowly, and most commands lock nothing

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.resolve() / LOCK, is_singleton=True)  # one object per folder, which counts how often it is held
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise FolderInUseError(f"{_holder(folder)} is using {folder}: stop it, or choose another folder") from None
    try:
        if lock.lock_counter == 1:
            about = {"process": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
            (folder / HOLDER).write_text(json.dumps(about), encoding="utf-8")  # a note, which need not outlive the machine
        yield
    finally:
        if lock.lock_counter == 1:
            (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    """Who holds the lock, as far as it is known."""
    try:
        about = json.loads((folder / HOLDER).read_text())
        return f"process {int(about['process'])} on {about['host']} (since {about['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
