"""No cache, data folder or network of the machine the tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDFEW_CACHE", str(folder))
    monkeypatch.delenv("FEDFEW_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder
