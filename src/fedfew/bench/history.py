"""The history of measured figures: one JSON document per line (``tools/benchmark_history.py`` makes a table of it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedfew.bench import machine

FORMAT = 1


def document(workloads: list[dict[str, Any]], device: torch.device, note: str = "") -> dict[str, Any]:
    """The figures of one call of ``fedfew bench``, with a description of the machine."""
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "note": note,
        "machine": machine.describe(device),
        "workloads": workloads,
    }


def measured(row: Mapping[str, Any], device: torch.device, note: str = "") -> dict[str, Any]:
    """The figures of another benchmark; row: its name (``benchmark``), its figures in words (``result``), and all else."""
    return document([], device, note) | {"measured": dict(row)}


def append(path: Path, entry: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def machine_line(about: Mapping[str, Any]) -> str:
    """A machine in one line."""
    card = f"{about['gpu']} ({about['gpu_memory_gib']} GiB, CUDA {about['cuda']}), " if about["gpu"] else ""
    return (
        f"{card}{about['cpu']}, {about['cores']} cores, {about['threads']} threads, {about['memory_gib']} GiB, "
        f"Python {about['python']}, torch {about['torch']}, fedfew {about['fedfew']}"
    )
