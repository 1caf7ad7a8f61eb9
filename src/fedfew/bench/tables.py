"""Measured figures as tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from fedfew.report.tables import empty

COLUMNS = ("a round", "speed-up", "TFLOP/s", "of peak", "memory", "differs")
SOME_CLIENTS = "a round   ≈: reckoned from some of the clients, since all would take long"
LEGEND = """\
speed-up  over the oracle: the sequential engine in fp32, plain PyTorch
TFLOP/s   useful arithmetic: three forward passes a sample
memory    the most held at once; on a CPU by a process that did one round
differs   from the oracle's parameters after the round, as a share of how far
          it moved them, in the worst tensor"""


def legend(workloads: Iterable[Mapping[str, Any]]) -> str:
    """What the columns mean, and the sign for rounds of some clients where there is one."""
    some = any(_of_some(way, workload["clients"]) for workload in workloads for way in workload["ways"])
    return f"{SOME_CLIENTS}\n{LEGEND}" if some else LEGEND


def measured(workload: Mapping[str, Any]) -> Table:
    """One workload, a row for each way it was done."""
    table = empty(heading(workload), "engine", *COLUMNS)
    for way in workload["ways"]:
        if "error" in way:
            table.add_row(f"{way['engine']} {way['precision']}", "failed", *[""] * (len(COLUMNS) - 1))
        else:
            table.add_row(f"{way['engine']} {way['precision']}", *figures(way, workload["clients"]))
    return table


def heading(workload: Mapping[str, Any]) -> str:
    sizes = sorted({workload["smallest_client"], workload["largest_client"]})
    each = " to ".join(f"{n:,}" for n in sizes)
    return (
        f"{workload['name']} on {workload['device']}: {workload['clients']} clients × {workload['models']} models, "
        f"{workload['samples']:,} samples ({each} each), batch {workload['batch_size']}, "
        f"{workload['mflop_per_sample']:.3g} MFLOP a sample"
    )


def figures(way: Mapping[str, Any], clients: int) -> list[str]:
    """The cells of :data:`COLUMNS`; clients: of the workload."""
    return [
        ("≈ " if _of_some(way, clients) else "") + duration(way["seconds"]),
        f"{way['times_the_oracle']:.2f}",
        f"{way['tflops']:.3g}",
        f"{way['share_of_peak']:.1%}",
        "–" if way["peak_bytes"] is None else f"{way['peak_bytes'] / 2**20:,.0f} MiB",
        "0" if way["difference"] == 0 else f"{way['difference']:.0e}",
    ]


def _of_some(way: Mapping[str, Any], clients: int) -> bool:
    return bool(way.get("clients_trained", clients) < clients)  # older documents do not say


def duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
