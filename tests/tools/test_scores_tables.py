"""The tables of docs/scores.md that are generated from the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfew.methods import METHODS
from tools import scores_tables

PAGE = Path(__file__).parents[2] / "docs" / "scores.md"


def test_the_page_on_scores_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert scores_tables.filled(page) == page, "run: python tools/scores_tables.py docs/scores.md"


def test_the_table_has_every_method_and_both_scores(monkeypatch):
    lines = scores_tables.scores_table().splitlines()[2:]
    own = [m for m in METHODS.values() if m.__module__.startswith("fedfew.")]
    assert [line.split(" | ") for line in lines] == [[f"| `{m.name}`", m.served, f"{m.adapted} |"] for m in own]
    monkeypatch.setitem(METHODS, "theirs", type("Theirs", (METHODS["fedavg"],), {"name": "theirs", "__module__": "elsewhere"}))
    assert len(scores_tables.scores_table().splitlines()) == len(lines) + 2


def test_the_tables_replace_what_was_there(monkeypatch):
    monkeypatch.setitem(scores_tables.TABLES, "costs", lambda: "| now |")
    page = scores_tables.filled(PAGE.read_text(encoding="utf-8"))
    assert "<!-- generated: costs -->\n| now |\n<!-- end: costs -->" in page
    stale = page.replace("| `fedavg` | the global model |", "| stale |").replace("| now |", "| then |\n| before |")
    assert stale != page
    assert scores_tables.filled(stale) == page
    with pytest.raises(ValueError, match="generated: costs"):
        scores_tables.filled(page.replace("<!-- end: costs -->", ""))


def test_a_page_is_written_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(scores_tables, "TABLES", {"costs": lambda: "| Σ |"})
    page = tmp_path / "page.md"
    page.write_text("a <!-- generated: costs -->old<!-- end: costs --> z", encoding="utf-8")
    scores_tables.write(page)
    assert page.read_text(encoding="utf-8") == "a <!-- generated: costs -->\n| Σ |\n<!-- end: costs --> z"
