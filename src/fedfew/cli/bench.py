"""``fedfew bench``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedfew.cli import errors, flags, places
from fedfew.util.files import check_writable

if TYPE_CHECKING:
    from fedfew.bench.measure import ShowStatus

EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew bench[/cyan]   the digits MLP and the paper's CNN, every engine and precision: about a minute
[cyan]fedfew bench all --device cuda[/cyan]   TextCNN, ResNet-18 and BlazeFL's benchmark as well
[cyan]fedfew bench cifar-cnn --engine stacked --clients 100 --samples 200[/cyan]   another federation
[cyan]fedfew bench --json --append benchmarks/history.jsonl --note "what changed"[/cyan]   keep the figures
"""
DEFAULT, ALL = ("digits-mlp", "cifar-cnn"), "all"
NAMES = "digits-mlp, cifar-cnn, text-cnn, resnet18, blazefl-cnn"


@errors.readable
def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"What to train: {NAMES}, or all.", show_default=" ".join(DEFAULT), autocompletion=flags.complete_workload
        ),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Only this engine, and the oracle.", show_default="all")] = None,
    precision: Annotated[
        str | None, typer.Option(help="Only this precision, and the oracle.", show_default="all that the device supports")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    clients: Annotated[int | None, typer.Option(help="Number of clients.", show_default="the workload's")] = None,
    models: Annotated[int | None, typer.Option(help="Models per client (K).", show_default="the workload's")] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Mean number of training samples per client.", show_default="the workload's, fewer on a CPU"),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds per variant.", show_default="as many as fit in 20 s")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, to check that it works; the figures mean nothing.")] = False,
    append: Annotated[Path | None, typer.Option(help="Append the JSON document to this file, as one line.")] = None,
    note: Annotated[str, typer.Option(help="A remark stored with the figures.")] = "",
    json: flags.Json = False,
) -> None:
    """Measure the engines on this machine: seconds per round, FLOP/s, memory, and agreement of the results.

    A round is one local epoch of every client (five of them in blazefl-cnn), K models each, on synthetic samples of the real
    data's shape. The variants take turns, so that other load on the machine affects them alike; the median counts. All are
    compared with the oracle, the sequential engine: one replica after the other in plain PyTorch.
    """
    from fedfew.bench import history
    from fedfew.bench.measure import measure
    from fedfew.bench.tables import legend, measured
    from fedfew.bench.timed_engine import variants
    from fedfew.bench.workloads import WORKLOADS, find
    from fedfew.report.tables import print_json, show
    from fedfew.util.devices import device_named

    if append is not None:
        check_writable(append)
    where = device_named(device)
    names = list(WORKLOADS) if workloads == [ALL] else workloads or list(DEFAULT)
    chosen = [find(name, where.type, quick, clients=clients, models=models, samples=samples) for name in names]
    every = variants(where, engine, precision)
    console = Console(stderr=json)
    results: list[dict[str, Any]] = []
    with _status_line(console) as show_status:
        for workload in chosen:
            results.append(measure(workload, every, where, 1 if quick and repeats is None else repeats, show_status))
    document = history.document(results, where, note)
    if append is not None:
        history.append(append, document)
    if json:
        print_json(document)
        return
    for result in results:
        show(console, measured(result))
        for variant in result["variants"]:
            if "error" in variant:
                errors.say(f"{variant['engine']} {variant['precision']} failed: {variant['error']}")
    console.print(legend(results), highlight=False, style="dim")
    console.print(history.machine_line(document["machine"]), highlight=False, soft_wrap=True)
    if append is not None:
        console.print(f"Added to [bold]{places.shown(append)}[/bold]", soft_wrap=True)


@contextmanager
def _status_line(console: Console) -> Iterator[ShowStatus]:
    """Current step: one updating line on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda text: console.print(text, highlight=False, soft_wrap=True)
        return
    with console.status("getting ready …") as status:
        yield lambda text: status.update(text)
