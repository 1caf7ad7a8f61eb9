"""A site's audit log: one line of JSON per message that leaves the site."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fedfew.flower import private_files
from fedfew.flower.messages import SiteMessage
from fedfew.stack import named_leaves


def append(folder: Path, message: SiteMessage) -> None:
    """Record a message before it is sent: names, shapes, bytes and norms of its arrays; all other values as they are."""
    private_files.make_folder(folder)
    arrays: list[dict[str, Any]] = [
        {
            "name": path,
            "shape": list(t.shape),
            "type": str(t.dtype).removeprefix("torch."),
            "bytes": t.numel() * t.element_size(),
            "norm": float(t.double().norm()),
        }
        for path, t in named_leaves(message.tree)
    ]
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "kind": message.kind,
        "values": message.values,
        "bytes": message.bytes,
        "arrays": arrays,
    }
    private_files.append(folder / "audit.jsonl", json.dumps(line) + "\n")
