"""Links in the documents lead somewhere, and the files that docs/architecture.md and docs/security.md name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += [page for folder in ("docs", "results", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEPS = ("data", "Federation", "dispatch", "client", "weights", "aggregate", "serve", "history", "report")


def test_links_lead_somewhere() -> None:
    links = [(p, target) for p in PAGES for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", p.read_text(encoding="utf-8"))]
    missing = [(page.name, target) for page, target in links if not (page.parent / target).exists()]
    assert len(links) > 100
    assert missing == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_anchors_are_headings() -> None:
    links = [
        (p, *link) for p in PAGES for link in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", p.read_text(encoding="utf-8"))
    ]
    missing = [
        (page.name, file, anchor) for page, file, anchor in links if anchor not in anchors((page.parent / file) if file else page)
    ]
    assert len(links) > 40
    assert missing == []


def paths(text: str) -> set[str]:
    """File and folder names of the page, without those that stand for any method, model, …"""
    found = re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.py)?|[\w-]+\.py)`", text)
    return {name for name in found if "<" not in name}


@pytest.mark.parametrize("page", ["architecture.md", "security.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = paths((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "src" / "fedfew"))]
    assert not missing


def test_every_step_of_a_round_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([\w ]+) \|", ARCHITECTURE, re.M)
    assert [row for row in rows if row in STEPS] == list(STEPS)


def test_no_figure_comes_from_a_script_that_is_gone() -> None:
    for page in PAGES:
        assert not re.search(r"script[^.]{0,60}not kept|not kept either", page.read_text(encoding="utf-8")), page
