"""The transformer of the study of adapters, and the study's file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from examples.ag_news_adapters import PAD, TOKENS, WIDTH, WORDS, Encoder

from examples import ag_news_adapters
from fedfew.studies.plan import cells
from fedfew.studies.study import read


def test_padding_has_no_effect() -> None:
    torch.manual_seed(0)
    module = Encoder().eval()
    ids = torch.randint(3, WORDS, (2, TOKENS))
    ids[1, 5:] = PAD
    with torch.no_grad():
        before = module(ids)
        module.embed.weight[PAD] = torch.randn(WIDTH)
        module.place[5:] = torch.randn(TOKENS - 5, WIDTH)
        after = module(ids)
    torch.testing.assert_close(after[1], before[1])
    assert not torch.allclose(after[0], before[0])


def test_the_model_without_its_weights_says_how_to_make_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ag_news_adapters, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"run python -m examples\.ag_news_adapters first"):
        ag_news_adapters.model()


def test_the_study_compares_adapters_and_whole_models(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    study = read(root / "results" / "adapters" / "adapters.yaml")
    whole = [cell.row for cell in cells(study) if cell.seed == 0 and cell.settings.adapters == "none"]
    assert whole == 2 * ["FedAvg, whole model"]
    assert len(cells(study)) == 2 * 3 * len(study.rows) == 36
