"""Measured figures as tables, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from fedfew.report.tables import empty
from fedfew.util.spelling import counted

COLUMNS = ("per round", "speed-up", "samples/s", "TFLOP/s", "of peak", "memory", "differs")
SOME_CLIENTS = "per round ≈: extrapolated from some of the clients, since all would take long"
LEGEND = """\
speed-up  over the oracle: the sequential engine in fp32, plain PyTorch
samples/s all local epochs and models of all clients counted
TFLOP/s   useful arithmetic: three forward passes per sample
memory    peak; on a CPU that of a process that did one round
differs   distance from the oracle's parameters after the round, relative to how
          far it moved them, in the worst tensor"""


def legend(workloads: Iterable[Mapping[str, Any]]) -> str:
    """What the columns mean, ≈ where it is used, and what others have published."""
    workloads = list(workloads)
    some = any(_of_some(variant, workload["clients"]) for workload in workloads for variant in workload["variants"])
    published = [f"{workload['name']}: {workload['published']}" for workload in workloads if workload.get("published")]
    return "\n".join([*published, *([SOME_CLIENTS] if some else []), LEGEND])


def measured(workload: Mapping[str, Any]) -> Table:
    """One workload, one row per variant. Not every column fits into 80 characters: samples/s appear where others report them."""
    hidden = COLUMNS.index("TFLOP/s" if workload["published"] else "samples/s")
    columns = [name for at, name in enumerate(COLUMNS) if at != hidden]
    table = empty(heading(workload), "engine", *columns)
    for variant in workload["variants"]:
        cells = ["failed"] if "error" in variant else figures(variant, workload)
        shown = [cell for at, cell in enumerate(cells) if at != hidden]
        table.add_row(f"{variant['engine']} {variant['precision']}", *shown, *[""] * (len(columns) - len(shown)))
    return table


def heading(workload: Mapping[str, Any]) -> str:
    sizes = sorted({workload["smallest_client"], workload["largest_client"]})
    each = " to ".join(f"{n:,}" for n in sizes)
    stack = f"{counted(workload['clients'], 'client')} × {counted(workload['models'], 'model')}"
    return (
        f"{workload['name']} on {workload['device']}: {stack}, "
        f"{workload['samples']:,} samples ({each} each), batch {workload['batch_size']}, "
        f"{counted(workload['local_epochs'], 'local epoch')}, "
        f"{workload['mflop_per_sample']:.3g} MFLOP per sample"
    )


def figures(variant: Mapping[str, Any], workload: Mapping[str, Any]) -> list[str]:
    """The cells of :data:`COLUMNS`."""
    trained = workload["samples"] * workload["models"] * workload.get("local_epochs", 1)  # older documents do not have it
    return [
        ("≈ " if _of_some(variant, workload["clients"]) else "") + duration(variant["seconds"]),
        f"{variant['times_the_oracle']:.2f}",
        rate(trained / variant["seconds"]),
        f"{variant['tflops']:.3g}",
        f"{variant['share_of_peak']:.1%}",
        "–" if variant["peak_bytes"] is None else f"{variant['peak_bytes'] / 2**20:,.0f} MiB",
        "0" if variant["difference"] == 0 else f"{variant['difference']:.0e}",
    ]


def _of_some(variant: Mapping[str, Any], clients: int) -> bool:
    return bool(variant.get("clients_trained", clients) < clients)  # older documents do not say


def rate(per_second: float) -> str:
    """Three digits of it."""
    return f"{float(f'{per_second:.3g}'):,.0f}"


def duration(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
