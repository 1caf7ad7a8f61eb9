"""Text from files and other people, made harmless where it is printed: a name must not steer a terminal or a spreadsheet."""

from __future__ import annotations

import re
import unicodedata

# Control characters (escape sequences begin with one), and characters that are invisible or turn the direction of the text.
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_KEPT = {"\u200c", "\u200d"}  # joiners, which some scripts and emoji are written with
_FORMULA = ("=", "+", "-", "@")
_MARKDOWN = set("\\`*_[]<>|~&$")


def printable(text: str) -> str:
    """The text with line breaks as blanks and hidden characters written out, as ``\\x1b``."""
    return "".join(_shown(character) for character in str(text))


def _shown(character: str) -> str:
    if character in "\n\r\t":
        return " "
    if unicodedata.category(character) in _HIDDEN and character not in _KEPT:
        return character.encode("unicode_escape", "backslashreplace").decode("ascii")
    return character


def for_csv(text: str) -> str:
    """Text that a spreadsheet does not take for a formula: where it would, with an apostrophe in front."""
    shown = printable(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def for_plot(text: str) -> str:
    """Text that matplotlib draws as it is: a $ in a user's name does not begin a formula."""
    return re.sub(r"(?<!\\)\$", r"\\$", printable(text))


def shortened(text: str, most: int = 24) -> str:
    """The text, cut where it is longer."""
    return text if len(text) <= most else text[: most - 1] + "…"


def for_markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    shown = "".join(f"\\{character}" if character in _MARKDOWN else character for character in printable(text))
    return f"\\{shown}" if shown.startswith(("#", "+", "-")) else shown  # a heading, a list
