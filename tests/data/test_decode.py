"""Texts and arrays to decoded data."""

from __future__ import annotations

from pathlib import Path

from tests.data import layouts
from tests.data.layouts import two


def test_a_text_of_a_million_characters(tmp_path: Path) -> None:
    texts = ["short one", "word " * 200_000, "x" * 10**6, "another"] * 2
    layouts.write(tmp_path / "a.parquet", {"text": texts, "label": [0, 1] * 4})
    federation = two(tmp_path / "a.parquet")
    assert federation.shape == (200,)
    assert federation.about["notes"] == ["4 texts were cut at 20,000 characters"]
