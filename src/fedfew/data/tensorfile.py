"""Named arrays and a description in one safetensors file: written atomically, checked on reading, memory-mapped."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedfew.data.errors import DataError
from fedfew.util.files import file_written_atomically

_ABOUT = "fedfew"


class BrokenFileError(DataError):
    """The file is damaged, or was not written by fedfew."""


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], *, private: bool = False) -> None:
    """Write a file atomically: a reader sees the old file, the new one or none. private: readable by the owner alone."""
    stored = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    note = {"about": dict(about), "crc32": {name: _crc(t) for name, t in stored.items()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_written_atomically(path) as partial:
        partial.touch(0o600 if private else 0o666)
        mode = partial.stat().st_mode  # as the user's umask leaves it; safetensors would make it private
        save(partial, stored, {_ABOUT: json.dumps(note)})
        partial.chmod(mode)


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """safetensors' own writing; what stops it, as a full disk, is an error of the operating system as elsewhere."""
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (memory-mapped) and the description; :class:`BrokenFileError` if length or checksum are wrong."""
    try:
        with safe_open(str(path), framework="pt") as file:
            note = json.loads((file.metadata() or {}).get(_ABOUT, "null"))
            if not isinstance(note, dict) or not {"about", "crc32"} <= note.keys():
                raise BrokenFileError(f"{path} was not written by fedfew: its header has no fedfew description")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is not iterable)
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BrokenFileError(f"{path} is damaged ({error})") from error
    if note["crc32"].keys() != tensors.keys():
        raise BrokenFileError(f"{path} is damaged: it holds {sorted(tensors)}, its description lists {sorted(note['crc32'])}")
    for name, tensor in tensors.items():
        if _crc(tensor) != note["crc32"][name]:
            raise BrokenFileError(f"{path} is damaged: the checksum of {name!r} is wrong")
    return tensors, note["about"]


def text_tensor(value: Any) -> Tensor:
    """A JSON value as bytes, for values that are too long for the header."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def from_text_tensor(tensor: Tensor) -> Any:
    return json.loads(bytes(tensor.numpy()).decode())


def _crc(tensor: Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).numpy().data) if tensor.numel() else 0
