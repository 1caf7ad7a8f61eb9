"""The history of measured figures: one JSON document per line, and the table made from it.

python -m fedfew.bench.history benchmarks            # write the table of benchmarks/history.jsonl into benchmarks/README.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedfew.bench import machine
from fedfew.bench.tables import COLUMNS, figures

FORMAT = 1
BEGIN, END = "<!-- generated: history -->", "<!-- end: history -->"


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


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of a file, oldest first."""
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            entry = json.loads(line)
            if entry.get("format") != FORMAT:
                raise ValueError(f"{path}, line {number}: format is {entry.get('format')!r}, not {FORMAT}")
            entries.append(entry)
    return entries


def table(entries: list[dict[str, Any]]) -> str:
    """Every measured variant in one line of Markdown, newest first, below it those of other benchmarks, and the machines."""
    machines: dict[str, str] = {}
    variants: list[list[str]] = []
    others: list[list[str]] = []
    for entry in reversed(entries):
        letter = machines.setdefault(machine_line(entry["machine"]), chr(ord("A") + len(machines)))
        variants += [[entry["date"], letter, *cells, entry["note"]] for cells in _cells(entry)]
        if row := entry.get("measured"):
            others.append([entry["date"], letter, row["benchmark"], row["result"], entry["note"]])
    parts = [_rows(("date", "machine", "workload", "engine", "precision", *COLUMNS, "note"), variants)]
    if others:
        parts.append(_rows(("date", "machine", "benchmark", "result", "note"), others))
    return "\n\n".join([*parts, "\n".join(f"- **{letter}**: {line}" for line, letter in machines.items())])


def _rows(head: Sequence[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def _cells(entry: Mapping[str, Any]) -> Iterator[list[str]]:
    for workload in entry["workloads"]:
        size = f"{workload['name']} {workload['clients']} × {workload['models']}, {workload['samples']:,} samples"
        for variant in workload["variants"]:
            if "error" not in variant:
                yield [size, variant["engine"], variant["precision"], *figures(variant, workload)]


def machine_line(about: Mapping[str, Any]) -> str:
    """A machine in one line."""
    card = f"{about['gpu']} ({about['gpu_memory_gib']} GiB, CUDA {about['cuda']}), " if about["gpu"] else ""
    return (
        f"{card}{about['cpu']}, {about['cores']} cores, {about['threads']} threads, {about['memory_gib']} GiB, "
        f"Python {about['python']}, torch {about['torch']}, fedfew {about['fedfew']}"
    )


def write(folder: Path) -> None:
    """Bring the table in a folder's README up to date with its history."""
    page = folder / "README.md"
    before, found, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"{page} must have {BEGIN} and, after it, {END}")
    page.write_text(f"{before}{BEGIN}\n{table(read(folder / 'history.jsonl'))}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
