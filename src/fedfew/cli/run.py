"""``fedfew run``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedfew.cli import errors, flags, places, recipe, runfiles, runfolder
from fedfew.training import default_k, progress
from fedfew.training.from_settings import for_task, make_federation, make_method, training_arguments
from fedfew.training.own_method import import_method, is_own
from fedfew.training.resolve import read_file, resolve
from fedfew.training.settings import Settings
from fedfew.util.files import check_writable, folder_locked
from fedfew.util.printable import printable

if TYPE_CHECKING:
    from fedfew.federation import Federation
    from fedfew.training.on_round import Progress
    from fedfew.training.run import Run

EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew run[/cyan]   FedFew with three models on rotated digits
[cyan]fedfew run --method fedfew --models 4 --mu 0.1[/cyan]   hyperparameters of the method ('fedfew methods fedfew')
[cyan]fedfew run --dataset digits --partition dirichlet:0.5 --method fedavg --rounds 50[/cyan]
[cyan]fedfew run --dataset cifar10 --protocol fair[/cyan]   the paper's settings
[cyan]fedfew run --dataset ward.csv --label outcome --client ward --val-share 0.2 --early-stopping 5 --keep best[/cyan]
[cyan]fedfew run --method mine:MyMethod --model mine:net[/cyan]   a method and a model of your own, in mine.py
[cyan]fedfew run --config my.yaml --lr 0.05[/cyan]   settings from a file, one overridden
[cyan]fedfew run --resume --folder runs/digits-fedfew-0[/cyan]   continue after Ctrl-C; with --rounds 200 a finished run
[cyan]fedfew run --models 5 --start runs/digits-fedfew-0[/cyan]   begin with the models of another run
[cyan]fedfew run --track tensorboard --track mlflow:http://localhost:5000[/cyan]   log to tracking tools
[cyan]torchrun --nproc-per-node 2 -m fedfew run --dataset cifar10[/cyan]   split the clients of a round over two GPUs
"""


@flags.takes_settings(defaults={"recipe": recipe.DEFAULT})
@errors.readable
def run(
    context: typer.Context,
    protocol: recipe.ProtocolFlag = None,
    config: flags.Config = None,
    folder: flags.Folder = None,
    resume: flags.Resume = False,
    start: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run to start from: with the same method, model and clients it is continued (--rounds is the "
            "total), else a new run begins with its models."
        ),
    ] = None,
    track: flags.Track = None,
    json: flags.Json = False,
    **given: Any,
) -> None:
    """Train one run and save it in a folder.

    Flags have the names of the arguments of fedfew.train. The method's hyperparameters are flags as well: 'fedfew methods NAME'
    lists them. A setting that is not given is read from --config; otherwise the recommended value for the data set is used, with
    the recipe strong where the data set is known by name.
    """
    from fedfew import tracking
    from fedfew.training import distributed

    with distributed.joined() as first:
        settings, place, about, recorded = _settings(given, flags.of_the_method(context.args), config, folder, resume, protocol)
        start = start or recorded
        place = distributed.group().firsts(place)  # a fresh name is made up once
        if first:
            check_writable(place, folder=True)
        training_arguments(settings)  # errors in them come before the data are read
        tools = (track or (tracking.kept(place) if resume else [])) if first else []
        console = Console(stderr=json, quiet=not first)
        tracker = tracking.open(*tools, folder=place, warn=lambda text: note(console, text))  # a missing package, too
        federation = load_data(settings, console)
        settings = fitted(settings, federation, console)
        heading = f"{settings.method} on {places.shown(federation.name)}, saved in [bold]{places.shown(place)}[/bold]"
        with tracker, progress.display(console) as display:
            finished = train_in(
                place,
                settings,
                federation,
                both(display.run(settings.method), tracker),
                resume,
                go_on=f"fedfew run --resume --folder {places.argument(place)}{runfolder.to_name_again(settings)}",
                accepted=lambda: _head(console, heading, about),
                keeps=first,
                start=start,
            )
            final = runfolder.write_final_scores(place, finished, federation) if first else {}
            if tools:
                tracker.finish(finished, final, artefacts(place, finished))
    if first:
        _show(place, finished, final, console, json)


def _head(console: Console, heading: str, about: str | None) -> None:
    console.print(heading, soft_wrap=True)
    if about:
        errors.paragraph(console, Text(printable(about)))


def both(show: Callable[[Progress], None], track: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Called after every round: the one, then the other."""

    def on_round(state: Progress) -> None:
        show(state)
        track(state)

    return on_round


def artefacts(place: Path, finished: Run) -> list[Path]:
    """Files that a tracking tool keeps with the run; the picture is drawn now."""
    from fedfew.report import plots

    picture = plots.run(finished, place / "curves.png", runfolder.about_data(place).get("groups"))
    return [picture, *(place / name for name in (runfolder.CONFIG, runfolder.FINAL_SCORES, "report.html"))]


def _show(place: Path, finished: Run, final: dict[str, Any], console: Console, json: bool) -> None:
    from fedfew.report import describe, tables

    if json:
        tables.print_json({"folder": str(place)} | describe(finished) | {"final": final})
    else:
        tables.show(console, tables.run_summary(finished, final))
        console.print(f"'fedfew show {places.shown(places.argument(place))}' shows it client by client.", soft_wrap=True)


def load_data(settings: Settings, console: Console) -> Federation:
    """The federation; notes about it are printed."""
    federation, notes = make_federation(settings)
    for text in notes:
        note(console, text)
    return federation


def fitted(settings: Settings, federation: Federation, console: Console) -> Settings:
    """The settings as these data need them: fewer models than the method's default, where there are fewer clients, and without
    the recipe's label prior, where there are no classes; notes say so."""
    settings = for_task(settings, federation)
    method, fewer = default_k.fitting(make_method(settings), settings.method_settings, len(federation))
    if not fewer:
        return settings
    note(console, fewer)
    return replace(settings, method_settings=settings.method_settings | {"models": method.settings()["models"]})


def note(console: Console, text: str) -> None:
    errors.paragraph(console, Text(f"note: {errors.as_flags(text)}", "yellow"))


def train_in(
    place: Path,
    settings: Settings,
    federation: Federation,
    show: Callable[[Progress], None],
    resume: bool,
    go_on: str,
    accepted: Callable[[], None] = lambda: None,
    keeps: bool = True,
    start: Path | None = None,
) -> Run:
    """Train, and keep all that is needed to continue in the folder ``place``.

    go_on: the command that continues after Ctrl-C; accepted: called after the first round, when the settings have proved valid;
    keeps: is this, of several processes, the one that writes? start: the folder of a run to start from.
    """
    import fedfew
    from fedfew.cli.show import load
    from fedfew.training.checkpoint import checkpoints as checkpoints_in

    arguments = training_arguments(settings)
    config = settings.as_config() | ({} if start is None else {"start": str(start)})
    if start is not None and not (resume and checkpoints_in(place)):
        arguments["start"] = load(start, settings.model)
        resume = False
    locked = folder_locked(place, wait=0) if keeps else nullcontext()
    with locked, runfolder.kept(place, config, federation, resume, writes=keeps) as keep:
        rounds_seen: list[int] = []
        seen = runfiles.ProgressFile(place)

        def on_round(state: Progress) -> None:  # called in the one process that keeps
            if not rounds_seen:
                keep()
                runfiles.write_costs(place, arguments, federation)
                accepted()
            rounds_seen.append(state.round)
            seen.write(state)
            show(state)

        try:
            return fedfew.train(federation, folder=place, resume=resume, on_round=on_round, **arguments)
        except fedfew.Interrupted as stopped:
            if keeps:
                seen.stopped("by Ctrl-C")
                errors.say(f"Stopped after round {stopped.run.round}. To continue: {go_on}")
            raise typer.Exit(errors.INTERRUPTED) from None
        except Exception as error:
            if keeps:
                seen.stopped(f"by an error: {error}")
            raise


def _settings(
    flags_given: dict[str, Any],
    method_flags: dict[str, str | None],
    config: Path | None,
    place: Path | None,
    resume: bool,
    protocol: str | None,
) -> tuple[Settings, Path, str | None, Path | None]:
    """The settings, the folder, a line about the recipe, and the folder of a run to start from, where a file names one."""
    files = [runfolder.to_resume(place, "run")] if resume else []
    if resume:
        runfolder.check_imports(place, files[0], flags_given)
        runfolder.check_named_by_user(
            place, str(recipe.explicit({}, *files)["method"].get("name", "")), flags_given.get("method"), "--method"
        )
    if config is not None:
        files.append(read_file(config))
    if str(flags_given.get("model")).isdigit():
        raise ValueError(f"--model names the network, as mlp, not {flags_given['model']}; the number of models is --models")
    starts = [Path(file.pop("start")) for file in files if file.get("start")]
    given = flags.given(flags_given)
    set_by_user, about = recipe.explicit(given, *files), None
    if not resume:
        files = [recipe.below(protocol, set_by_user), *files, recipe.method(protocol, set_by_user)]
    elif protocol is not None:
        raise ValueError(f"--protocol is for a new run: the one in {place} keeps its own settings")
    if is_own(name := str(set_by_user["method"].get("name", ""))):
        import_method(name)
    settings = resolve(given, method_flags, *files)
    if not resume:
        about = recipe.line(settings, protocol, set_by_user)
    place = place or runfolder.fresh(f"{runfolder.named(settings.dataset)}-{settings.method}-{settings.seed}")
    return settings, place, about, starts[-1] if starts else None
