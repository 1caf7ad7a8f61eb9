"""``fedfew study``: list, run, show, new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfew.cli import errors, places, study_output
from fedfew.studies.folder import DEFAULT
from fedfew.util.files import check_writable

RUN_EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew study run quick[/cyan]   ten methods on rotated digits, three seeds, in minutes
[cyan]fedfew study run table1 --dry-run[/cyan]   how many runs, which data are here, how long it will take
[cyan]fedfew study run table1 --scale 0.05 --only 'cifar10-*'[/cyan]   a twentieth of the rounds, two of the nine columns
[cyan]fedfew study run table1 --only '*/FedFew' --only '*/IFCA' --protocol fair --seeds 5[/cyan]
[cyan]fedfew study run mine.yaml[/cyan]   your own study ('fedfew study new mine' writes a file to start from)

After Ctrl-C, a crash or a power cut the same command resumes the study. Finished runs are never repeated.
"""
SHOW_EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew study show quick[/cyan]
[cyan]fedfew study show table1 --format latex -o table1.tex[/cyan]
"""

TIME_LIMIT = 360.0  # minutes

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A study's name ('fedfew study list'), or the YAML file of one of your own.",
        autocompletion=lambda incomplete: _complete(incomplete),
    ),
]
Root = Annotated[Path, typer.Option("--folder", help="Folder of the runs and results of all studies.")]


def _complete(incomplete: str) -> list[str]:
    from fedfew.studies.study import catalogue

    return [name for name in catalogue() if name.startswith(incomplete)]


@app.command("list")
@errors.readable
def list_() -> None:
    """The studies that come with the package."""
    from rich.table import Table

    from fedfew.studies.study import catalogue, read

    table = Table(box=None, padding=(0, 2, 1, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold cyan")
    table.add_column(overflow="fold")
    for name in catalogue():
        study = read(name)
        table.add_row(name, f"[bold]{study.title}[/bold]\n{study.about}")
    console = Console()
    console.print(table)
    console.print("'fedfew study run NAME --dry-run' shows how many runs that is and how long they take.", soft_wrap=True)


@app.command(epilog=RUN_EXAMPLES)
@errors.readable
def run(
    name: Name,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="published, fair or tuned; may be given several times. [dim](default: the study's)[/dim]"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds (0, 1, …). [dim](default: the study's)[/dim]")] = None,
    scale: Annotated[
        float,
        typer.Option(
            help="Fraction of the rounds: 0.05 makes a study twenty times shorter. Below 0.02 it is a smoke test, with one seed "
            "and 100 rows per client."
        ),
    ] = 1.0,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only these columns, rows, or column/row; * matches anything. May be given several times."),
    ] = None,
    sample: Annotated[int | None, typer.Option(help="Use only this many rows of every data set, for quick tries.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at a time. [dim](default: one per core on a CPU; one on a GPU, three under NVIDIA's MPS)[/dim]"
        ),
    ] = None,
    pack: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs per worker in one stack, where data set, model and local training agree. "
            "[dim](default: 10 on a GPU, 1 on a CPU)[/dim]",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:N, or auto.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of data sets, searched before any download (default: $FEDFEW_DATA).")
    ] = None,
    folder: Root = DEFAULT,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only check and plan: list the runs, estimate the time. Nothing that the study names is imported."
        ),
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")] = False,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep each run's last checkpoint (they are large).")] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="MINUTES", help="A run that finishes no round for so long is killed and counts as failed; 0: never."
        ),
    ] = TIME_LIMIT,
) -> None:
    """Run a study, or the runs of it that are not finished, and show its tables and figures."""
    from fedfew.studies import execution
    from fedfew.studies.options import Options
    from fedfew.studies.study import read
    from fedfew.training.distributed import only_alone

    only_alone("study run")
    console = Console()
    study = read(name)
    if study.call is not None:
        study_output.run_function(study, folder, console, dry_run)
        return
    options = Options(tuple(protocol or ()), seeds, scale, tuple(only or ()), sample, device, data_dir)
    if not dry_run:
        check_writable(folder, folder=True)
    prepared = execution.prepare(study, options, folder, workers=workers, retry_failed=retry_failed, pack=pack)
    if dry_run:
        study_output.print_runs(prepared, console)
        study_output.print_plan(prepared, console)
        return
    study_output.print_plan(prepared, console)
    report = study_output.run_with_display(prepared, console, keep_models, 60 * time_limit or None)
    results, _ = execution.collect_results(folder, study.name)
    study_output.print_results(study, results, prepared.folder, console)
    how = {
        "--workers": workers,
        "--pack": pack,
        "--keep-models": keep_models or None,
        "--time-limit": None if time_limit == TIME_LIMIT else f"{time_limit:g}",
    }
    study_output.print_outcome(prepared, report, console, study_output.resume_command(name, options, folder, how))


@app.command(epilog=SHOW_EXAMPLES)
@errors.readable
def show(
    name: Name,
    folder: Root = DEFAULT,
    format: Annotated[str, typer.Option(help="terminal, markdown, latex, csv, or json (the runs themselves).")] = "terminal",
    json: Annotated[bool, typer.Option("--json", help="The runs as JSON; the same as --format json.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Show the tables of a study, from the runs finished so far, and where its figures and results are."""
    from fedfew.studies import execution
    from fedfew.studies.output import ENDINGS
    from fedfew.studies.study import read
    from fedfew.util.spelling import unknown

    if json:
        if format not in ("terminal", "json"):
            raise ValueError(f"--json and --format {format} contradict each other: give one of them")
        format = "json"
    if format not in (forms := ("terminal", *ENDINGS, "json")):
        raise unknown("--format", format, forms)
    study = study_output.stored_study(name, folder) or read(name)
    if study.call is not None:
        study_output.print_function_results(folder / study.name, format, output)
        return
    results, _ = execution.collect_results(folder, study.name)
    if format == "terminal" and output is None:
        study_output.print_results(study, results, folder / study.name, Console())
        return
    study_output.write_or_print(study_output.formatted(study, results, format), output)


@app.command()
@errors.readable
def new(name: Annotated[str, typer.Argument(help="Name of the study; NAME.yaml is written.")]) -> None:
    """Write a commented study file as a starting point."""
    from importlib import resources

    from fedfew.studies.study import parse

    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if path.exists():
        raise ValueError(f"{path} exists: choose another name")
    text = (resources.files("fedfew.studies") / "example.yaml").read_text(encoding="utf-8").format(name=path.stem)
    parse(text, str(path))
    path.write_text(text, encoding="utf-8")
    typer.echo(f"{path} is written. 'fedfew study run {places.argument(path)} --dry-run' checks it.")
