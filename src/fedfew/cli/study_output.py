"""What ``fedfew study`` prints: the plan, the progress, the results."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from fedfew.cli import errors
from fedfew.studies.folder import DEFAULT, PLAN
from fedfew.studies.module_lookup import check_named
from fedfew.util.printable import printable
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.studies.execution import Prepared
    from fedfew.studies.job import Report
    from fedfew.studies.options import Options
    from fedfew.studies.store import Results
    from fedfew.studies.study import Study


# -- run ---------------------------------------------------------------------------------------------------------------------


def run_function(study: Study, folder: Path, console: Console, dry_run: bool) -> None:
    """A study that trains nothing: a function does everything."""
    assert study.call is not None
    try:
        check_named(study.call, "call")
    except ValueError as error:
        raise ValueError(f"{study.source}, {error}") from None
    if dry_run:
        console.print(f"{study.name} trains nothing: it calls {study.call}", soft_wrap=True, markup=False)
        return
    module, _, function = study.call.partition(":")
    try:
        called = getattr(import_module(module), function, None)
    except ImportError as error:
        raise ValueError(f"{study.source}, call: the module {module} cannot be imported: {error}") from error
    if called is None:
        raise ValueError(f"{study.source}, call: {module} has no function {function!r}")
    place = folder / study.name
    place.mkdir(parents=True, exist_ok=True)
    if not called(place, console):
        raise typer.Exit(errors.FAILED)
    print_locations(place, console)


def print_plan(prepared: Prepared, console: Console) -> None:
    """What is going to happen."""
    from fedfew.studies.estimate import format_duration
    from fedfew.studies.scale import ROWS, SMOKE_TEST, is_smoke_test

    study, unique = prepared.study, {cell.key for cell in prepared.cells}
    shared = f" ({len(unique)} different ones)" if len(unique) < len(prepared.cells) else ""
    counts = [f"{len(prepared.new)} to make", f"{len(prepared.done)} done already"]
    counts += [f"{len(prepared.without_data)} without data"] if prepared.without_data else []
    counts += [f"{len(prepared.failed)} failed before, not tried again without --retry-failed"] if prepared.failed else []
    console.print(Text(printable(study.title), "bold"), soft_wrap=True)
    console.print(f"{counted(len(prepared.cells), 'run')}{shared}: {', '.join(counts)}", highlight=False, soft_wrap=True)
    for reason in prepared.damaged.values():
        console.print(Text.assemble(("made again", "yellow"), f": {printable(reason)}"), soft_wrap=True)
    for dataset, why in prepared.missing.items():
        left_out = sum(cell.settings.dataset == dataset for cell in prepared.without_data.values())
        line = f": {printable(dataset)}, {counted(left_out, 'run')} left out. {printable(why)}"
        console.print(Text.assemble(("not here", "yellow"), line), soft_wrap=True)
    everywhere = len({cell.column for cell in prepared.cells})
    for change, columns in prepared.protocol_changes.items():
        where = "everywhere" if len(columns) == everywhere else f"in {', '.join(columns)}"
        console.print(Text(printable(f"{change}, {where}"), "dim"), soft_wrap=True)
    if is_smoke_test(prepared.options.scale):
        console.print(
            f"[yellow]a smoke test[/yellow] (--scale below {SMOKE_TEST:g}): one seed and {ROWS} rows per client, unless --seeds "
            "and --sample say otherwise. It shows that everything works; its scores say nothing about methods.",
            highlight=False,
            soft_wrap=True,
        )
    if prepared.new:
        total = prepared.estimate.total(prepared.workers)
        long = "of unknown duration" if total is None else f"about {format_duration(total)}"
        some = counted(prepared.workers, "worker")
        console.print(f"{long}, with {some} ({prepared.estimate.how})", highlight=False, soft_wrap=True)
        if prepared.packs is not None:
            console.print(prepared.packs, highlight=False, soft_wrap=True)


def print_runs(prepared: Prepared, console: Console) -> None:
    from rich.table import Table

    from fedfew.studies.estimate import format_duration

    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("run", "rounds", "clients", "partition", "model", "status"):
        table.add_column(head, no_wrap=True)
    known = {"done": [*prepared.done], "failed before": [*prepared.failed], "no data": [*prepared.without_data]}
    for cell in prepared.cells:
        seconds = prepared.estimate.seconds.get(cell.key) if cell.key in prepared.new else None
        to_make = "to make" if seconds is None else f"to make, about {format_duration(seconds)}"
        status = next((name for name, keys in known.items() if cell.key in keys), to_make)
        s = cell.settings
        values = (cell.label, str(s.rounds), str(s.clients or ""), s.partition or "", s.model, status)
        table.add_row(*(Text(printable(value)) for value in values))
    (console if console.is_terminal else Console(width=200)).print(table)


def run_with_display(prepared: Prepared, console: Console, keep_models: bool, time_limit: float | None) -> Report:
    from fedfew.studies.display import Tally, display

    seconds = {key: prepared.estimate.seconds[key] or 1.0 for key in prepared.new}
    older = prepared.older
    tally = Tally(len(prepared.done) + len(prepared.new), len(prepared.done), seconds)
    with display(console, tally) as watcher:
        report, dropped = prepared.run(watcher, keep_models=keep_models, time_limit=time_limit)
    if older is not None:
        console.print(printable(older), soft_wrap=True, markup=False)
    if dropped is not None:
        console.print(
            f"The tables now show {prepared.options.length} instead of {dropped}. No runs are deleted: the tables show them "
            "again when the study is run with the same options as before.",
            soft_wrap=True,
        )
    return report


def print_outcome(prepared: Prepared, report: Report, console: Console, command: str) -> None:
    labels = {cell.key: cell.label for cell in prepared.cells}
    failed = prepared.failed | report.failed
    if failed:
        _list_failed({labels[key]: why for key, why in failed.items()}, console)
    if report.stopped and report.left:  # the runs that were going on may have been the last
        errors.say(f"Stopped with {counted(len(report.left), 'run')} left. To continue: {command}")
        raise typer.Exit(errors.INTERRUPTED)
    if failed:
        raise typer.Exit(errors.FAILED)


def _list_failed(failed: dict[str, str], console: Console) -> None:
    from rich.table import Table

    table = Table(
        title=f"{counted(len(failed), 'run')} failed (--retry-failed tries again)", title_style="red", title_justify="left"
    )
    table.add_column("why", overflow="fold", ratio=3)
    table.add_column("runs", overflow="fold", ratio=2)
    for why in dict.fromkeys(failed.values()):
        labels = "\n".join(printable(label) for label, reason in failed.items() if reason == why)
        table.add_row(Text(printable(why)), Text(labels))
    console.print(table)


def resume_command(name: str, options: Options, folder: Path, how: Mapping[str, object] | None = None) -> str:
    """The command that resumes the study; ``how``: flags that decide how its runs are made, None for what was not given."""
    given: list[tuple[str, object]] = [
        *(("--protocol", value) for value in options.protocols),
        *(("--only", value) for value in options.only),
        ("--seeds", options.seeds),
        ("--scale", None if options.scale == 1 else f"{options.scale:g}"),
        ("--device", options.device),
        ("--data-dir", options.data_dir),
        ("--sample", options.sample),
        ("--folder", None if folder == DEFAULT else folder),
        *(how or {}).items(),
    ]
    words = [str(word) for flag, value in given if value is not None for word in ((flag,) if value is True else (flag, value))]
    return shlex.join(["fedfew", "study", "run", name, *words])


# -- show --------------------------------------------------------------------------------------------------------------------


def stored_study(name: str, folder: Path) -> Study | None:
    """The study file stored with the results; the user's own may have been changed or deleted since."""
    from fedfew.studies.folder import STUDY
    from fedfew.studies.study import parse

    kept = folder / (Path(name).stem if name.endswith((".yaml", ".yml")) else name) / STUDY
    return parse(kept.read_text(encoding="utf-8"), str(kept)) if kept.is_file() else None


def print_results(study: Study, results: Results, folder: Path, console: Console) -> None:
    """The tables on the screen; tables and figures in files."""
    from fedfew.studies import output

    made = output.tables(study, results)
    for table in output.for_terminal(made, printed_below=results):
        console.print(table)
    for note in output.notes(results):
        console.print(Text(printable(note), "dim"), soft_wrap=True)
    output.write_tables(made, folder)
    output.draw_figures(study, results, folder)
    if not study.tables and not study.figures:
        console.print(f"no tables: {study.source} declares none; add tables: [{{kind: methods}}]", markup=False, soft_wrap=True)
    print_locations(folder, console)


def print_locations(folder: Path, console: Console) -> None:
    """The folders of results, tables and figures."""
    if not folder.is_dir():
        raise ValueError(f"there is nothing in {folder} yet: 'fedfew study run {folder.name}' makes it")
    results = [path for path in sorted([*folder.glob("*.parquet"), *folder.glob("*.json")]) if path.name != PLAN]
    drawn = [path for path in sorted(folder.glob("*")) if path.suffix in (".png", ".svg")]
    parts = {"results": (folder, results), "tables": (folder / "tables", sorted(folder.glob("tables/*")))}
    parts["figures"] = (folder, drawn) if drawn else (folder / "figures", sorted(folder.glob("figures/*")))
    for what, (place, files) in parts.items():
        if files:
            stems = ", ".join(dict.fromkeys(path.stem for path in files))
            endings = ", ".join(dict.fromkeys(path.suffix[1:] for path in files))
            line = Text.assemble(f"{what} in ", (printable(str(place)), "bold"), f": {printable(stems)} ({printable(endings)})")
            console.print(line, soft_wrap=True)


def print_function_results(folder: Path, format: str, output: Path | None) -> None:
    """What a study without runs has left in its folder: the locations, or its JSON files as one document."""
    if format not in ("terminal", "json"):
        raise ValueError(f"{folder.name} has no tables: --format must be terminal or json, not {format}")
    if format == "terminal":
        print_locations(folder, Console())
        return
    document = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    if not document:
        raise ValueError(f"there are no results in {folder} yet: 'fedfew study run {folder.name}' makes them")
    write_or_print(json.dumps(document, indent=1), output)


def write_or_print(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text + "\n", encoding="utf-8")


def formatted(study: Study, results: Results, format: str) -> str:
    from fedfew.studies import output

    if format == "json":
        return json.dumps(results.runs.to_pylist(), indent=1)
    made: list[Any] = output.tables(study, results)
    if format == "terminal":
        console = Console(record=True, file=io.StringIO(), width=160)
        for table in output.for_terminal(made):
            console.print(table)
        return console.export_text()
    return "\n\n".join(output.rendered(table, format) for table in made)
