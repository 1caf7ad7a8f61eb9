"""Names that would steer a terminal, a spreadsheet or a Markdown page."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfew.util.printable import for_csv, for_markdown, for_plot, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("FedFew, μ = 0.01 – worst client", "FedFew, μ = 0.01 – worst client"),
        ("a\x1b[31mred\x1b]0;title\x07", "a\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),  # the same as ESC [ on an eight-bit terminal
        ("two\nlines\r\n", "two lines  "),
        ("abc\u202efdp.exe", "abc\\u202efdp.exe"),  # would be shown backwards
        ("\ud800", "\\ud800"),
    ],
)
def test_hidden_characters_are_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_hidden_is_left(text: str) -> None:
    hidden = {character for character in printable(text) if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert hidden <= {"\u200c", "\u200d"}


@pytest.mark.parametrize("text", ["=1+1", '=HYPERLINK("http://x")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_spreadsheet_sees_text_not_a_formula(text: str) -> None:
    assert for_csv(text) == f"'{printable(text)}"


@given(st.text(alphabet="ab='+-@ "))
def test_a_csv_file_holds_the_text_with_at_most_an_apostrophe_more(text: str) -> None:
    assert not for_csv(text).strip().startswith(("=", "+", "-", "@"))
    assert for_csv(text) in (text, f"'{text}")


def test_matplotlib_sees_no_formula() -> None:
    assert for_plot("a $b$ \\$c\x1b") == "a \\$b\\$ \\$c\\x1b"


def test_markdown_shows_text_as_it_is() -> None:
    assert for_markdown("<img src=x>") == "\\<img src=x\\>"
    assert for_markdown("[a](javascript:b)") == "\\[a\\](javascript:b)"
    assert for_markdown("x|y\n# z") == "x\\|y # z"
    assert for_markdown("# heading") == "\\# heading"
