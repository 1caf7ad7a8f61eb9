"""One file of tensors: whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfew.data import DataError, tensorfile


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("fedfew.data.tensorfile.save_file", full)
    with pytest.raises(OSError, match="no space"):
        tensorfile.write(tmp_path / "a.rows", {"x": torch.zeros(3)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(3)}, tmp_path / "a.fed")
    with pytest.raises(DataError, match="was not written by fedfew"):
        tensorfile.read(tmp_path / "a.fed")
    save_file({"x": torch.zeros(3)}, tmp_path / "b.fed", metadata={"fedfew": '{"about": {}, "crc32": {"z": 1}}'})
    with pytest.raises(DataError, match="its description lists"):
        tensorfile.read(tmp_path / "b.fed")
