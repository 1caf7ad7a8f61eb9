"""``fedfew data``: list the data sets, show how one is partitioned among clients, write it into one file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedfew.cli import errors, flags
from fedfew.cli.run import load_data
from fedfew.training.resolve import resolve
from fedfew.training.settings import OF_THE_DATA
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.data.sources import Source
    from fedfew.federation import Federation

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="DATASET", help="A name (fedfew data list), a path, or hub:owner/name.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder searched before any network. Default: $FEDFEW_DATA.")]
Seed = Annotated[int, typer.Option(help="Seed of partition, split and sample.")]
OTHER_COLUMNS = 60  # characters of 'fedfew data list' before the address
SETTINGS = [name for name in OF_THE_DATA if name not in ("dataset", "data_seed")]  # --seed is all the seed there is here


@app.command("list")
@errors.readable
def list_(data_dir: DataDir = None, as_json: flags.Json = False) -> None:
    """List the data sets known by name, and whether they are in the data folder."""
    from fedfew.data import finding
    from fedfew.data.sources import SOURCES

    folder = finding.data_folder(data_dir)
    if as_json:
        print(json.dumps(_listed(folder), indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("name", *(["here"] if folder else []), "sample", "classes", "rows", "MB"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("classes", "rows", "MB") else "left")
    table.add_column("from")
    console = Console()
    room = console.width - OTHER_COLUMNS
    table.add_row("digits", *(["yes"] if folder else []), "1×8×8", "10", "1,797", "0", "embedded")
    for source in SOURCES.values():
        here, address = _is_in(folder, source), (source.hub or source.home or "your own files").removeprefix("https://")
        table.add_row(
            source.name,
            *(["yes" if here else "·"] if folder else []),
            "×".join(map(str, source.size)) if source.size else source.kind,
            str(source.classes),
            f"{source.rows:,}" if source.rows else "",
            f"{source.megabytes:,}",
            address if len(address) <= room else address.replace("/", "/\n"),
        )
    console.print(table)


def _is_in(folder: Path | None, source: Source) -> bool:
    return folder is not None and any((folder / name).is_dir() for name in source.folder_names)


def _listed(folder: Path | None) -> list[dict[str, Any]]:
    """The table of ``fedfew data list`` as JSON values."""
    from fedfew.data.sources import SOURCES

    digits = {"name": "digits", "kind": "image", "here": True, "shape": [1, 8, 8], "classes": 10, "rows": 1797, "megabytes": 0}
    others = [
        {
            "name": source.name,
            "kind": source.kind,
            "here": _is_in(folder, source),
            "shape": list(source.size) if source.size else None,
            "classes": source.classes,
            "rows": source.rows,
            "megabytes": source.megabytes,
            "address": source.address,
            "partition": source.partition,
            "clients": source.clients,
        }
        for source in SOURCES.values()
    ]
    return [digits, *others]


@app.command()
@flags.takes_settings(only=SETTINGS)
@errors.readable
def show(
    dataset: Name,
    seed: Seed = 0,
    picture: Annotated[Path | None, typer.Option(help="Write a figure of the counts here (PNG, PDF, SVG).")] = None,
    style: Annotated[str, typer.Option(help="Style of the figure: bars, bubbles, or auto.")] = "auto",
    as_json: flags.Json = False,
    **given: Any,
) -> None:
    """Show the samples per client and class, and how different the clients are."""
    from fedfew.data import show as showing

    federation = _loaded(dataset, seed, given)
    if as_json:
        print(json.dumps(showing.document(federation), indent=2))
        console = Console(stderr=True)
    else:
        console = Console()
        console.print(showing.table(federation, console.width))
        for line in showing.column_lines(federation):
            console.print(line, markup=False, highlight=False)
        if showing.has_classes(federation):
            distance = showing.heterogeneity(showing.counts(federation))
            console.print(f"mean pairwise label distance: {distance:.3f} (0: the same for all, 1: no class in common)")
    if picture is not None:
        drawn = showing.picture(federation, picture, style)  # type: ignore[arg-type]  # checked there
        console.print(f"picture: {drawn}", markup=False)


@app.command()
@flags.takes_settings(only=SETTINGS)
@errors.readable
def prepare(
    dataset: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write; ends in .fed.")],
    seed: Seed = 0,
    **given: Any,
) -> None:
    """Write a federation into one file for --dataset; reading it needs no further libraries."""
    from fedfew.data import prepared

    begin = time.perf_counter()
    if not prepared.is_prepared(output):
        raise ValueError(f"--output must end in {prepared.SUFFIX}, not {output.name!r}")
    federation = _loaded(dataset, seed, given)
    path = prepared.write(federation, output)
    seconds = time.perf_counter() - begin
    samples = sum(int(s.count.sum()) for s in federation.splits.values())
    Console().print(
        f"{path}: {federation.name}, {counted(len(federation), 'client')}, {samples:,} samples, "
        f"{path.stat().st_size / 1e6:,.1f} MB, {seconds:.1f} s",
        markup=False,
    )


def _loaded(dataset: str, seed: int, given: dict[str, Any]) -> Federation:
    """The federation that a command's options describe; notes about it go to standard error."""
    settings = resolve({"dataset": dataset, "data_seed": seed} | flags.given(given), {})
    return load_data(settings, Console(stderr=True))
