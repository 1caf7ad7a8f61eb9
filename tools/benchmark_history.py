"""The table of measured figures in ``benchmarks/README.md``, made of ``benchmarks/history.jsonl``.

python tools/benchmark_history.py benchmarks            # write it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfew.bench.history import FORMAT, machine_line
from fedfew.bench.tables import COLUMNS, figures

BEGIN, END = "<!-- generated: history -->", "<!-- end: history -->"


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
