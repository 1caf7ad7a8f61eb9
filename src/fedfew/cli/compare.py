"""``fedfew compare``."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedfew.cli import errors, flags, places, recipe, runfolder
from fedfew.cli.run import both, fitted, load_data, note, train_in
from fedfew.training import progress
from fedfew.training.from_settings import make_method
from fedfew.training.own_method import import_method, is_own
from fedfew.training.resolve import resolve
from fedfew.training.settings import Settings
from fedfew.util.files import check_writable
from fedfew.util.spelling import closest, counted

if TYPE_CHECKING:
    from fedfew.evaluation.costs import Cost
    from fedfew.federation import Federation
    from fedfew.training.run import Run

EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew compare[/cyan]   local, fedavg and fedfew on rotated digits
[cyan]fedfew compare --methods all --seeds 3 -o comparison.png[/cyan]
[cyan]fedfew compare --methods fedavg,fedfew:models=4,mu=0.1,fedfew:published[/cyan]   hyperparameters after a colon
[cyan]fedfew compare --resume --folder runs/compare-digits[/cyan]   continue after Ctrl-C
"""
DEFAULT_METHODS, DEFAULT_SEEDS = "local,fedavg,fedfew", 1


@flags.takes_settings("method", defaults={"recipe": recipe.DEFAULT})
@errors.readable
def compare(
    context: typer.Context,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods separated by commas, hyperparameters after a colon: fedavg,fedfew:models=4,mu=0.1. Or all.",
            show_default=DEFAULT_METHODS,
            autocompletion=flags.complete_methods,
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds per method, starting with --seed.", show_default=str(DEFAULT_SEEDS))
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the plot (default: comparison.png in the folder).")
    ] = None,
    protocol: recipe.ProtocolFlag = None,
    config: flags.Config = None,
    folder: flags.Folder = None,
    resume: flags.Resume = False,
    track: flags.Track = None,
    json: flags.Json = False,
    **given: Any,
) -> None:
    """Train several methods on the same data with several seeds: one table and one plot.

    All clients are scored twice: served (the model as the server sends it) and adapted (after the round's local training). Every
    run is saved in its own folder below --folder. On a data set known by name all methods get the recipe strong, where they can
    use it; --protocol fair or published brings the paper's settings. Runs are made one after the other; 'fedfew study run' makes
    several at a time.
    """
    from fedfew import tracking
    from fedfew.report import plots, tables
    from fedfew.training.distributed import only_alone

    only_alone("compare")
    _refuse(context)
    tracking.open(*(track or []), folder=Path())  # a missing package is reported now
    plots.check_output(output)
    file = runfolder.configuration(folder, "compare", resume, config, given)
    specs = _specs(methods, str(file.pop("methods", DEFAULT_METHODS)), folder, resume)
    count = seeds or int(file.pop("seeds", DEFAULT_SEEDS))
    common = {name: value for name, value in file.items() if name not in ("methods", "seeds", "method")}
    set_by_user = recipe.explicit(flags.given(given), common)
    contenders = {label: _settings(given, common, own, protocol, resume) for label, own in parse(specs).items()}
    any_one = next(iter(contenders.values()))
    place = folder or runfolder.fresh(f"compare-{runfolder.named(any_one.dataset)}")
    check_writable(place, folder=True)
    console = Console(stderr=json)
    federation = load_data(any_one, console)
    contenders = {label: fitted(settings, federation, console) for label, settings in contenders.items()}
    contenders = _of_the_task(contenders, specs.strip() == "all", federation, console)
    costs = {label: _cost(label, settings, federation, console) for label, settings in contenders.items()}
    _keep(place, any_one, specs, count, resume)
    console.print(
        f"{counted(len(contenders), 'method')} × {counted(count, 'seed')} on {places.shown(federation.name)}, "
        f"saved in [bold]{places.shown(place)}[/bold]",
        soft_wrap=True,
    )
    if not resume and (about := recipe.line(any_one, protocol, set_by_user)):
        errors.paragraph(console, Text(about))
    go_on = f"fedfew compare --resume --folder {places.argument(place)}"
    with (
        runfolder.discarded_if_unused(place),
        errors.continued_by(go_on, place),
        progress.display(console, runs=count * len(contenders)) as display,
    ):
        every, diverged = _train(contenders, count, federation, place, display, resume, track or [], go_on)
    runs = {label: row for label, row in every.items() if row}
    if not runs:
        raise ValueError(next(iter(diverged.values())))
    title = (
        f"{federation.name}, {counted(len(federation), 'client')}, {counted(any_one.rounds, 'round')}, {counted(count, 'seed')}"
    )
    picture = plots.comparison(runs, output or place / "comparison.png", title)
    if json:
        tables.print_json({"folder": str(place), "plot": str(picture), "methods": _as_values(runs, costs), "diverged": diverged})
        _end(diverged, console)
        return
    known = {label: counted for label, counted in costs.items() if counted is not None}
    tables.show(console, tables.comparison(runs, title), tables.costs(known))
    console.print(f"Plot: [bold]{places.shown(picture)}[/bold]", soft_wrap=True)
    _end(diverged, console)


def _end(diverged: dict[str, str], console: Console) -> None:
    """Say which runs are not in the table."""
    for run, error in diverged.items():
        note(console, f"{run} is left out: {error}")
    if diverged:
        raise typer.Exit(errors.FAILED)


def _refuse(context: typer.Context) -> None:
    """Refuse words and flags that are none of compare's, with where a method or its hyperparameter is given."""
    from fedfew.methods import METHODS
    from fedfew.methods.hyperparameters import hyper_parameters

    if not context.args:
        return
    word = context.args[0].partition("=")[0]
    if not word.startswith("-"):
        raise ValueError(f"{word!r} is not expected here: methods are one list without spaces, --methods local,fedavg,fedfew")
    owners = [name for name in METHODS if word in {hyperparameter.flag for hyperparameter in hyper_parameters(name)}]
    if owners:
        after = word[2:].replace("-", "_")
        raise ValueError(f"there is no flag {word}; a hyperparameter follows its method: --methods {owners[0]}:{after}=…")
    known = [flag for parameter in context.command.params for flag in (*parameter.opts, *parameter.secondary_opts)]
    meant = closest(word, known)
    raise ValueError(f"there is no flag {word}; " + (f"did you mean {meant}?" if meant else "'fedfew compare --help' lists them"))


def _specs(given: str | None, kept: str, folder: Path | None, resume: bool) -> str:
    """The methods to compare: those given, else those kept in the folder or the default. The user's own are imported."""
    specs = kept if given is None else given
    for method in parse(specs).values():
        if is_own(method["name"]):
            if resume:
                runfolder.check_named_by_user(folder, method["name"], given, f"--methods {kept}, here for")
            import_method(method["name"])
    return specs


def _of_the_task(contenders: dict[str, Settings], every: bool, federation: Federation, console: Console) -> dict[str, Settings]:
    """Those whose method fits the task of the data. every: all methods are asked for, and the others are left out; one that is
    named is refused now, not after the runs before it."""
    from fedfew.training.task_settings import check_method

    methods = {label: make_method(settings) for label, settings in contenders.items()}
    if not every:
        for method in methods.values():
            check_method(method, federation.task)
    unfit = [label for label, method in methods.items() if method.needs_classes and federation.task != "classification"]
    if unfit:
        note(console, f"left out, since they work with classes alone and the task is {federation.task}: {', '.join(unfit)}")
    return {label: settings for label, settings in contenders.items() if label not in unfit}


def _settings(
    given: dict[str, Any], common: dict[str, Any], method: dict[str, Any], protocol: str | None, resume: bool
) -> Settings:
    """The settings of one method."""
    chosen = flags.given(given)
    if resume:
        if protocol is not None:
            raise ValueError("--protocol is for a new comparison: this one keeps its own settings")
        return resolve(chosen, {}, common, {"method": method})
    set_by_user = recipe.explicit(chosen, common, {"method": method})
    files = recipe.below(protocol, set_by_user), common, {"method": method}, recipe.method(protocol, set_by_user)
    return resolve(chosen, {}, *files)


def parse(specs: str) -> dict[str, dict[str, Any]]:
    """Labels and method mappings of ``fedavg,fedfew:models=4,mu=0.1``; a piece with '=' belongs to the method before it."""
    from fedfew.methods import METHODS

    if specs.strip() == "all":
        return {name: {"name": name} for name in METHODS}
    pieces: list[str] = []
    for piece in filter(None, (p.strip() for p in specs.split(","))):
        if "=" in piece.partition(":")[0]:
            if not pieces:
                raise ValueError(f"--methods begins with the setting {piece!r}; a method's name comes first: fedfew:{piece}")
            pieces[-1] += ("," if ":" in pieces[-1] else ":") + piece
        else:
            pieces.append(piece)
    if not pieces:
        raise ValueError(f"--methods names no method; there are: {', '.join(METHODS)}")
    if len(set(pieces)) < len(pieces):
        raise ValueError(f"--methods names a method twice with the same settings: {specs}")
    return {piece: _mapping(piece) for piece in pieces}


def _mapping(spec: str) -> dict[str, Any]:
    from fedfew.methods import METHODS

    name, _, settings = spec.partition(":")
    if name not in METHODS and (own := re.match(r"([\w.]+:\w+)(?:[:,](.*))?$", spec)):  # module:Class
        name, settings = own[1], own[2] or ""
    mapping: dict[str, Any] = {"name": name}
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        mapping[key.strip()] = value if equals else "true"
    return mapping


def _cost(label: str, settings: Settings, federation: Federation, console: Console) -> Cost | None:
    """The cost of a round; None, and a note, where it cannot be counted. ValueError: the method would not train, either."""
    from fedfew.evaluation.costs import cost_of

    try:
        return cost_of(settings, federation)
    except ValueError:
        raise
    except Exception as error:
        note(console, f"the costs of {label} could not be counted: {type(error).__name__}: {error}")
        return None


def _keep(place: Path, settings: Settings, specs: str, seeds: int, resume: bool) -> None:
    common = {name: value for name, value in settings.as_config().items() if name != "method"}
    runfolder.write_first_config(place, {"methods": specs, "seeds": seeds} | common, resume, "comparison")


def _train(
    contenders: dict[str, Settings],
    seeds: int,
    federation: Federation,
    place: Path,
    display: progress.Display,
    resume: bool,
    track: list[str],
    go_on: str,
) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """The runs of each method, and by run why one came to no end."""
    from fedfew import DivergedError, tracking

    runs: dict[str, list[Run]] = {label: [] for label in contenders}
    diverged: dict[str, str] = {}
    for seed in range(seeds):
        for label, settings in contenders.items():
            seeded = replace(settings, seed=settings.seed + seed)
            show = display.run(f"{label}, seed {seeded.seed}" if seeds > 1 else label)
            below = place / runfolder.as_name(f"{label}-{seeded.seed}")
            tools = track or (tracking.kept(below) if resume else [])
            try:
                with tracking.open(*tools, folder=below) as tracker:
                    run = train_in(below, seeded, federation, both(show, tracker), resume, go_on)
                    tracker.finish(run)
            except DivergedError as error:
                diverged[f"{label}, seed {seeded.seed}"] = str(error)
            else:
                runs[label].append(run)
    return runs, diverged


def _worst(run: Run) -> dict[str, Any]:
    """The names of the clients with the lowest scores, where clients have names."""
    from fedfew.report import SCORES
    from fedfew.report.tables import worst_client

    found = {score: worst_client(run, run.scores(score)) for score in SCORES}
    return {"worst_client": found} if run.data.client_names else {}


def _as_values(runs: dict[str, list[Run]], costs: dict[str, Cost | None]) -> dict[str, Any]:
    from fedfew.report import across_seeds, score_values, seconds

    return {
        label: {
            "across_seeds": {score: asdict(values) for score, values in across_seeds(row).items()},
            "seeds": {run.settings["seed"]: score_values(run) | _worst(run) | {"seconds": seconds(run)} for run in row},
            "settings": row[0].settings,
            "costs": None if (counted := costs[label]) is None else asdict(counted),
        }
        for label, row in runs.items()
    }
