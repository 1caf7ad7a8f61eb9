"""A site's private files: readable by their owner alone, and private state with a checksum against damage."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from fedfew.util.files import DamagedFileError, write_atomically

DIGEST_BYTES = sha256().digest_size


def make_folder(path: Path) -> None:
    """A folder that only its owner can enter; one that exists already is closed to others."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def append(path: Path, text: str) -> None:
    """Append to a log that only its owner can read; a symbolic link is not followed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8") as log:
        os.fchmod(log.fileno(), 0o600)
        log.write(text)


def write(path: Path, data: bytes) -> None:
    """Write the SHA-256 of the data, then the data, atomically."""
    write_atomically(path, sha256(data).digest() + data, private=True)


def read(path: Path) -> bytes:
    """The data that :func:`write` wrote; DamagedFileError where the file has changed since."""
    contents = path.read_bytes()
    digest, data = contents[:DIGEST_BYTES], contents[DIGEST_BYTES:]
    if sha256(data).digest() != digest:
        raise DamagedFileError(f"{path} is damaged: it has changed since it was written")
    return data
