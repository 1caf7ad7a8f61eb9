"""What vLLM takes of adapters, and the command line that serves them.

The conditions are those of vLLM 0.32 (``vllm/lora/peft_helper.py``, ``vllm/config/lora.py``).
``examples/vllm_adapters.py`` compares its server with peft.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what --max-lora-rank may be; no layer's rank may be above it
HEADS = ("classifier", "score")  # names of trained heads that it takes, of models for classification
# settings of peft that change what an adapter computes
UNKNOWN = ("use_dora", "lora_bias", "alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora")
PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")  # others change the base model's weights


def largest_rank(config: Mapping[str, Any]) -> int | None:
    """Of all layers of an adapter, by its adapter_config.json."""
    return max([config["r"], *(config.get("rank_pattern") or {}).values()]) if "r" in config else None


def refusal(config: Mapping[str, Any], base: str | None) -> str | None:
    """Why vLLM does not take an adapter, by its adapter_config.json; None if it does.

    base: ``model_type`` of the base model's configuration, None for a model that is not of transformers.
    """
    reasons = []
    if base is None:
        reasons.append("the base model is not one of transformers")
    if base == "gpt2":
        reasons.append("vLLM has no LoRA for GPT-2")
    if config["peft_type"] != "LORA":
        return "; ".join([*reasons, f"peft_type is {config['peft_type']}, not LORA"])
    if heads := [name for name in config.get("modules_to_save") or () if name not in HEADS]:
        reasons.append(
            f"the head {', '.join(heads)} was trained (modules_to_save), and vLLM takes only heads called {' or '.join(HEADS)}: "
            "train with LoRA(train_head=False)"
        )
    if config.get("bias", "none") != "none":
        reasons.append(f"bias is {config['bias']}")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        reasons.append(f"init_lora_weights is {start}, which changes the base model's weights")
    reasons += [f"{name} is set" for name in UNKNOWN if config.get(name)]
    rank = largest_rank(config)
    if rank is not None and rank > RANKS[-1]:
        reasons.append(f"the rank {rank} is above {RANKS[-1]}")
    return "; ".join(reasons) or None


def command(base: str, names: Sequence[str], rank: int) -> str:
    """Serves adapters in folders of these names, run in the folder that holds them."""
    allowed = next(one for one in RANKS if one >= rank)
    modules = " ".join(f"{name}=./{name}" for name in names)
    options = f"--enable-lora --max-loras {len(names)} --max-lora-rank {allowed} --lora-modules {modules}"
    return f"vllm serve {shlex.quote(base)} {options}"
