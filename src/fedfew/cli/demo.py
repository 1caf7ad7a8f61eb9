"""``fedfew demo``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedfew.cli import errors, flags, places
from fedfew.training import progress

if TYPE_CHECKING:
    from rich.table import Table

    from fedfew.training.on_round import Progress
    from fedfew.training.run import Run


@errors.readable
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the partition, the initial models and the batches.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; counts how often the groups are found.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 100,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the plot goes.")] = Path("demo/demo.png"),
    json: flags.Json = False,
) -> None:
    """Compare local training, FedAvg and FedFew on rotated digits.

    Twenty clients in four groups. Each group sees digits rotated by another quarter turn, so no single model suits all clients.
    Local-only training, FedAvg (one model) and FedFew (four models) are trained, scored as served and as adapted, and plotted.
    """
    from fedfew.report import plots, score_values, tables
    from fedfew.studies import demo as demonstration

    plots.check_output(output)
    console = Console(stderr=json)
    numbers = range(seed, seed + seeds)
    console.print("[bold]20 clients, 4 groups[/bold]: each group sees digits rotated by 0, 90, 180 or 270°.\n", highlight=False)
    runs: dict[str, list[Run]] = {label: [] for label in demonstration.METHODS}
    found = []
    with progress.display(console, runs=len(runs) * seeds) as display:
        for number in numbers:
            tail = f", seed {number}" if seeds > 1 else ""
            of_seed = demonstration.train_all(number, partial(_watch, display, tail), rounds)
            found.append(demonstration.groups_found(of_seed, number))
            for label, run in of_seed.items():
                runs[label].append(run)
    first = {label: row[0] for label, row in runs.items()}
    groups = demonstration.federation(seed).groups
    assert groups is not None
    picture = plots.demo(first, groups.tolist(), output, demonstration.FEDFEW, demonstration.GROUP_NAMES)
    if json:
        scores = {label: [score_values(run) for run in row] for label, row in runs.items()}
        tables.print_json({"scores": scores, "groups_found": found, "seeds": list(numbers), "plot": str(picture)})
        return
    tables.show(console, tables.comparison(runs, "rotated digits"), _who_uses_which(first[demonstration.FEDFEW], groups.tolist()))
    console.print(_verdict(found), highlight=False)
    console.print(
        f"Learning curves and weights over rounds: [bold]{places.shown(picture)}[/bold]", soft_wrap=True, highlight=False
    )


def _watch(display: progress.Display, tail: str, label: str) -> Callable[[Progress], None]:
    return display.run(label + tail)


def _who_uses_which(run: Run, groups: list[int]) -> Table:
    from fedfew.report import tables

    table = tables.empty("FedFew: which model each client uses", "digits rotated by", "clients", "models they use")
    choice = run.choice.tolist()
    for group in sorted(set(groups)):
        members = [i for i, g in enumerate(groups) if g == group]
        used = [str(choice[i]) for i in members]
        table.add_row(f"{90 * group}°", ", ".join(map(str, members)), ", ".join(used))
    return table


def _verdict(found: list[bool]) -> str:
    if len(found) > 1:
        return f"The four groups were found, one model per group, with {sum(found)} of {len(found)} seeds."
    if found[0]:
        return "[green]✓[/green] The four groups were found: one model per group, although the server was never given them."
    return "[yellow]✗[/yellow] The four groups were not found with this seed: some share a model. Try another --seed."
