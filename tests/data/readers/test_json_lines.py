"""JSON lines: columns by key, and errors that quote no value."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfew.data.errors import DataError
from fedfew.data.readers import json_lines

LINES = '{"text": "secret", "label": 1}\n{"label": 0, "text": "two\\nlines"}\n'


def test_keys_are_columns_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES)
    found = json_lines.read_table(tmp_path / "a.jsonl")
    assert found.to_pydict() == {"text": ["secret", "two\nlines"], "label": [1, 0]}


@pytest.mark.parametrize("contents", [LINES + '{"text": "secret"', '{"text": "secret"}\n{"text": 5}\n', ""])
def test_what_is_no_table_is_refused_without_its_contents(contents: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(contents)
    with pytest.raises(DataError, match=r"a.jsonl cannot be read as JSON lines: every line must be an object") as error:
        json_lines.read_table(tmp_path / "a.jsonl")
    assert "secret" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.jsonl cannot be read: No such file"):
        json_lines.read_table(tmp_path / "absent.jsonl")
