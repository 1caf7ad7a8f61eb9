"""What the model card of adapters says of their use without fedfew."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfew.util.printable import for_markdown

VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what --max-lora-rank may be; the adapters' rank must not be above it


def serving(card: Mapping[str, Any]) -> str:
    """How adapters are loaded by peft, and served by vLLM."""
    about, names = card["adapters"], [Path(row["file"]).parent.name for row in card["models"]]
    known = "choice" in card["of_single_clients"]
    routes = " `routes.json` has the adapter of each client, or the weights of its mixture." if known else ""
    text = f"""These are adapters of {for_markdown(about["base"])}, which is not in this folder: the factory returns that
base model, and `card.json` has the hash of its parameters.{routes} Without fedfew:
```python
from peft import PeftModel

module = PeftModel.from_pretrained(base_model, "{names[0]}")
```
"""
    if about["head"] is not None:
        head = "The adapters contain a trained head (`modules_to_save`), which vLLM does not take: train with"
        return f"{text}{head} `LoRA(train_head=False)` for it.\n"
    largest = next((rank for rank in VLLM_RANKS if rank >= (about["rank"] or math.inf)), None)
    if largest is None:
        return text
    base, modules = shlex.quote(about["base"]), " ".join(f"{name}=./{name}" for name in names)
    return f"""{text}A server of all of them, where vLLM knows the base model:
```bash
vllm serve {base} --enable-lora --max-loras {len(names)} --max-lora-rank {largest} --lora-modules {modules}
```
"""
