"""The example of a vLLM server: what it exports, and how it compares. No server is started: peft answers for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples import vllm_adapters

pytestmark = pytest.mark.slow  # importing transformers and peft takes longer than the test


def test_every_client_asks_its_own_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("transformers", "peft"):
        pytest.importorskip(package)
    monkeypatch.setattr(vllm_adapters, "FOLDER", tmp_path / "vllm")
    monkeypatch.setattr(vllm_adapters, "PROMPTS", ("red cat",))
    vllm_adapters.prepare("classification", rounds=2)
    adapters = tmp_path / "vllm" / "adapters"
    modules = "adapter-0=./adapter-0 adapter-1=./adapter-1"
    command = f"vllm serve ../base --enable-lora --max-loras 2 --max-lora-rank 8 --lora-modules {modules}"
    assert command in (adapters / "README.md").read_text()
    config = json.loads((adapters / "adapter-0" / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["score"]
    assert all(name.endswith("_proj") for name in config["target_modules"])

    asked: list[str] = []

    def answer(url: str, task: str, model: str, prompt: str) -> list[float]:
        asked.append(model)
        return [value + 0.25 * (model == "../base") for value in vllm_adapters.by_peft(model, prompt)]

    monkeypatch.setattr(vllm_adapters, "by_vllm", answer)
    assert vllm_adapters.compare("classification", "") == pytest.approx(0.25)
    routes = json.loads((adapters / "routes.json").read_text())
    assert asked == [*routes.values(), "../base"]
    assert vllm_adapters.by_peft("adapter-0", "red cat") != vllm_adapters.by_peft("../base", "red cat")
