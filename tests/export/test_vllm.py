"""What vLLM is said to take of adapters. Its own server refused and took the same ones (docs/adapters.md)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedfew.export import vllm
from fedfew.export.adapter_card import serving

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 8, "modules_to_save": None, "bias": "none"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"modules_to_save": ["score"]}, {"use_rslora": True}, {"init_lora_weights": "gaussian"}, {"rank_pattern": {"v": 512}}],
    ids=["plain", "head", "rslora", "start", "ranks"],
)
def test_what_vllm_takes(settings: dict[str, Any]) -> None:
    assert vllm.refusal(PLAIN | settings, "llama") is None


@pytest.mark.parametrize(
    ("settings", "base", "reason"),
    [
        ({}, None, "the base model is not one of transformers"),
        ({}, "gpt2", "vLLM has no LoRA for GPT-2"),
        ({"peft_type": "IA3", "modules_to_save": ["lm_head"]}, "llama", "peft_type is IA3, not LORA"),
        ({"modules_to_save": ["score", "lm_head"]}, "llama", r"the head lm_head was trained .* LoRA\(train_head=False\)"),
        ({"bias": "lora_only"}, "llama", "bias is lora_only"),
        ({"init_lora_weights": "pissa"}, "llama", "init_lora_weights is pissa, which changes the base model's weights"),
        ({"use_dora": True}, "llama", "use_dora is set"),
        ({"rank_pattern": {"v": 513}}, "llama", "the rank 513 is above 512"),
        ({"use_dora": True, "lora_bias": True}, "gpt2", "vLLM has no LoRA for GPT-2; use_dora is set; lora_bias is set"),
    ],
)
def test_what_vllm_does_not_take(settings: dict[str, Any], base: str | None, reason: str) -> None:

    assert re.fullmatch(reason, vllm.refusal(PLAIN | settings, base) or "")


@pytest.mark.parametrize(("rank", "flag"), [(1, 8), (8, 8), (9, 16), (300, 320)])
def test_the_command_has_a_rank_that_vllm_takes(rank: int, flag: int) -> None:
    about = {"base": "name of mine", "rank": rank, "not_on_vllm": None}
    card = {"adapters": about, "models": [{"file": f"adapter-{k}/x"} for k in range(3)], "of_single_clients": ["choice"]}
    names = " ".join(f"adapter-{k}=./adapter-{k}" for k in range(3))
    command = f"vllm serve 'name of mine' --enable-lora --max-loras 3 --max-lora-rank {flag} --lora-modules {names}\n"
    assert command in serving(card)
    assert "computes no mixture" not in serving(card)
    assert "computes no mixture" in serving(card | {"of_single_clients": ["choice", "mixture"]})


def test_the_largest_rank_of_all_layers_counts() -> None:
    assert vllm.largest_rank(PLAIN | {"rank_pattern": {"v": 16, "q": 2}}) == 16
    assert vllm.largest_rank(PLAIN | {"rank_pattern": None}) == 8
    assert vllm.largest_rank({"peft_type": "IA3"}) is None
