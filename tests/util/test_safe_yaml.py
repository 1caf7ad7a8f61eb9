"""YAML texts that are made to take all memory, all time or the whole stack."""

from __future__ import annotations

import pytest

from fedfew.util import safe_yaml
from fedfew.util.safe_yaml import YAMLError, load

LISTS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60))
KEYS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} {{? *a{i - 1} : *a{i - 1}}}\n" for i in range(1, 60))


def test_values_names_and_aliases() -> None:
    assert load("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}
    assert load("") is None
    assert load("[1, 2.5, true, null, text]") == [1, 2.5, True, None, "text"]


def test_brackets_within_brackets_up_to_a_depth() -> None:
    deepest = safe_yaml.DEEPEST
    assert load("[" * deepest + "]" * deepest) is not None
    with pytest.raises(YAMLError, match="nested too deeply"):
        load("[" * (deepest + 1) + "]" * (deepest + 1))


@pytest.mark.parametrize(
    ("text", "why"),
    {
        "lists of aliases": (LISTS, "more than 100,000 values"),
        "merged aliases": (MERGES, "more than 100,000 values"),
        "aliases as names": (KEYS, "more than 100,000 values"),
        "an alias within itself": ("a: &a [*a]", "an alias stands within its own anchor"),
        "nested lists": ("[" * 100_000, "nested too deeply"),
        "nested mappings": ("{a: " * 5_000, "nested too deeply"),
        "very long": ("x" * (safe_yaml.LONGEST + 1), "at most 1,000,000 are read"),
        "a number without end": ("seeds: " + "9" * 50_000, "limit"),
        "a date that is none": ("2024-13-45", "month"),
        "a Python object": ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
        "a name twice": ("a: 1\na: 2", "'a' is there twice"),
        "half": ("a: [1,", "expected"),
    }.values(),
)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    """At once: without the limits some of these would take years."""
    with pytest.raises(YAMLError, match=why):
        load(text)
