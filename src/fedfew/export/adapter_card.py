"""The part of a model card on the use of adapters without fedfew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfew.export import vllm
from fedfew.util.printable import for_markdown


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
    if about["not_on_vllm"] is not None:
        return f"{text}vLLM does not take these adapters: {for_markdown(about['not_on_vllm'])}.\n"
    mixed = " It answers with one adapter per request and computes no mixture." if "mixture" in card["of_single_clients"] else ""
    return f"""{text}A server of all of them, if vLLM has LoRA for the base model. A request names its adapter as `model`.{mixed}
```bash
{vllm.command(about["base"], names, about["rank"])}
```
"""
