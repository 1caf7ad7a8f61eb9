"""Words of messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedfew
from fedfew.config import TrainConfig
from fedfew.util.spelling import ELSEWHERE, closest, counted, unknown

SRC = Path(fedfew.__file__).parent
NOUNS = "runs|clients|rounds|models|samples|seeds|methods|workers|rows|images|cells"


@pytest.mark.parametrize(("number", "words"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1200, "1200 runs")])
def test_a_number_agrees_with_its_noun(number: int, words: str) -> None:
    assert counted(number, "run") == words


def test_the_nearest_name_is_offered() -> None:
    assert str(unknown("method", "fedavgg", ["fedfew", "fedavg"])) == (
        "there is no method 'fedavgg'; did you mean 'fedavg'? (there are: fedfew, fedavg)"
    )
    assert str(unknown("method", "x", [])) == "there is no method 'x' (there are: none)"


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("learning_rate", ["lr", "server_learning_rate"], "lr"),
        ("--join-ratio", ["--participation"], "--participation"),
        ("K", ["models", "mu"], "models"),
        ("learning_rate", ["learning_rates"], "learning_rates"),
        ("K", ["rounds"], None),
    ],
)
def test_what_other_libraries_call_it_is_known(word: str, known: list[str], meant: str | None) -> None:
    assert closest(word, known) == meant


def test_every_such_word_leads_to_a_name_of_ours() -> None:
    assert set(ELSEWHERE.values()) <= {*vars(TrainConfig()), "method", "models"}
    assert not set(ELSEWHERE) & set(vars(TrainConfig()))


def test_what_the_command_line_and_studies_print_is_counted() -> None:
    """No f"{number} runs", which is wrong for one; constants, numbers with a format and those after "of" are more than one."""
    found = [
        f"{path.name}: {match[0]}"
        for path in sorted([*SRC.glob("cli/*.py"), *SRC.glob("studies/**/*.py")])
        for match in re.finditer(rf"(?<! of )\{{[^{{}}A-Z:]+\}} ({NOUNS})\b", path.read_text(encoding="utf-8"))
    ]
    assert found == []
