"""The log of what left a site: one line of JSON a letter."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fedfew.flower.messages import Letter
from fedfew.stack import named_leaves


def note(folder: Path, letter: Letter) -> None:
    """Write down, before it leaves, what a letter holds: of arrays names, shapes, bytes and norms; other values as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: list[dict[str, Any]] = [
        {
            "name": path,
            "shape": list(t.shape),
            "type": str(t.dtype).removeprefix("torch."),
            "bytes": t.numel() * t.element_size(),
            "norm": float(t.double().norm()),
        }
        for path, t in named_leaves(letter.tree)
    ]
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "kind": letter.kind,
        "values": letter.values,
        "bytes": letter.bytes,
        "arrays": arrays,
    }
    with open(folder / "left.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
