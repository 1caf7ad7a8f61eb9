"""The language model of the study of styles, its rules of rewriting, and the study's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from examples.ag_news_styles import CLIENTS, EACH, MORE, PIECES, TOKENS, LanguageModel

from examples import ag_news_styles
from fedfew.studies.plan import cells
from fedfew.studies.study import read


def test_a_place_sees_those_before_it_alone() -> None:
    torch.manual_seed(0)
    module = LanguageModel().eval()
    ids = torch.randint(0, PIECES, (1, TOKENS))
    other = ids.clone()
    other[0, 5] = (ids[0, 5] + 1) % PIECES
    with torch.no_grad():
        before, after = module(ids)[0], module(other)[0]
    torch.testing.assert_close(after[:5], before[:5])
    assert not torch.allclose(after[5], before[5])
    assert not torch.allclose(after[9], before[9])


def test_rules_by_hand() -> None:
    assert ag_news_styles.reversed_words("a b, c") == "c b, a"
    assert ag_news_styles.other_vowels("faure, you") == "feari, yua"
    letters = ag_news_styles.other_letters(ag_news_styles.LETTERS)
    assert sorted(letters) == list(ag_news_styles.LETTERS)
    assert letters != ag_news_styles.LETTERS
    assert ag_news_styles.other_letters("a 1-b") == f"{letters[0]} 1-{letters[1]}"


def test_every_client_has_one_style_and_no_text_is_used_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ag_news_styles, "FOLDER", tmp_path)
    private = [(f"t{i}", i % 4) for i in range(2 * CLIENTS * MORE)]
    marked = tuple((lambda text, style=style: f"{style} {text}") for style in range(4))
    monkeypatch.setattr(ag_news_styles, "RULES", marked)
    ag_news_styles.write_clients(private)
    used = {}
    for kind, each in (("topics", EACH), ("rewritten", EACH), ("topics-more", MORE), ("topics-tuning", MORE)):
        rows = [json.loads(line) for line in (tmp_path / f"{kind}.jsonl").read_text().splitlines()]
        used[kind] = {row["text"].split()[-1] for row in rows}
        assert len(used[kind]) == len(rows) == CLIENTS * each
        for row in rows:
            style = int(row["client"][len("style ")])
            assert (int(row["text"].split()[0]) if kind == "rewritten" else int(row["text"][1:]) % 4) == style
    assert not used["topics-tuning"] & used["topics-more"]


def test_the_model_without_its_weights_says_how_to_make_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ag_news_styles, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"run python -m examples\.ag_news_styles first"):
        ag_news_styles.model()


@pytest.mark.parametrize("kind", ["rewritten", "topics", "topics-more"])
def test_the_studies_have_three_seeds_of_four_methods(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    planned = cells(read(root / "results" / "adapters" / f"styles-{kind}.yaml"))
    assert len(planned) == 3 * 4
    assert {cell.settings.task for cell in planned} == {"language-modelling"}
    assert {cell.settings.max_length for cell in planned} == {TOKENS}
