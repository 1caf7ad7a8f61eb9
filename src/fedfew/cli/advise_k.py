"""``fedfew advise-k``."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedfew.cli import errors, flags, places, runfolder
from fedfew.cli.run import load_data, note, train_in
from fedfew.training import progress
from fedfew.training.from_settings import for_task
from fedfew.training.resolve import resolve
from fedfew.training.settings import Settings
from fedfew.util.files import check_writable
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.evaluation.choosing_k import Advice, Observed
    from fedfew.federation import Federation

EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew advise-k[/cyan]   K from 1 to 6 on rotated digits (four true groups)
[cyan]fedfew advise-k --dataset digits --partition iid --ks 1-4[/cyan]
[cyan]fedfew advise-k --ks 1,2,4,8 --seeds 5 --mu 0.1 -o advice.svg[/cyan]   hyperparameters of FedFew
[cyan]fedfew advise-k --resume --folder runs/advise-digits[/cyan]   continue after Ctrl-C
"""
DEFAULT_KS, DEFAULT_SEEDS, DEFAULT_HOLD_OUT = "1-6", 3, 0.2
OWN = ("ks", "seeds", "hold_out")  # in the folder's configuration, beside the settings of the runs


@flags.takes_settings("method", "val_share")
@errors.readable
def advise_k(
    context: typer.Context,
    ks: Annotated[str | None, typer.Option(help="Which K to try: 1-6, or 1,2,4,8.", show_default=DEFAULT_KS)] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds per K, starting with --seed.", show_default=str(DEFAULT_SEEDS))
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(help="Fraction of each client's training data held out for validation.", show_default=str(DEFAULT_HOLD_OUT)),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File of the plot (advice.png in the folder).")] = None,
    config: flags.Config = None,
    folder: flags.Folder = None,
    resume: flags.Resume = False,
    json: flags.Json = False,
    **given: Any,
) -> None:
    """Choose the number of models: train FedFew for several K and recommend one.

    Each client's training data are split in two: models are trained on one part and validated on the other. Test data are not
    used. The recommendation is the fewest models in use whose best run is within two standard errors of the best run of all. Also
    shown is the heterogeneity of the clients, measured with models trained locally.
    """
    from fedfew.report import choosing_k as report
    from fedfew.report import plots, tables
    from fedfew.training.distributed import only_alone

    only_alone("advise-k")
    plots.check_output(output)
    file = runfolder.configuration(folder, "advise-k", resume, config, given)
    own = {name: file.pop(name, None) for name in OWN}
    tried = parse(ks or str(own["ks"] or DEFAULT_KS))
    count = seeds or int(own["seeds"] or DEFAULT_SEEDS)
    share = float(own["hold_out"] or DEFAULT_HOLD_OUT) if hold_out is None else hold_out
    settings = _settings(flags.given(given), flags.of_the_method(context.args), file)
    place = folder or runfolder.fresh(f"advise-{runfolder.named(settings.dataset)}")
    check_writable(place, folder=True)
    console = Console(stderr=json)
    federation = _held_out(settings, share, console)
    settings = for_task(settings, federation)
    if not (ks or own["ks"]) and max(tried) > len(federation):
        tried = [k for k in tried if k <= len(federation)]
        note(console, f"K up to {tried[-1]}: there are {counted(len(federation), 'client')}")
    if max(tried) > len(federation):
        raise ValueError(f"ks goes up to {max(tried)}, but there are {counted(len(federation), 'client')}: K can be at most that")
    _keep(place, settings, tried, count, share, resume)
    console.print(
        f"K = {', '.join(map(str, tried))} × {counted(count, 'seed')} on {places.shown(federation.name)}, "
        f"saved in [bold]{places.shown(place)}[/bold]",
        soft_wrap=True,
    )
    go_on = f"fedfew advise-k --resume --folder {places.argument(place)}"
    with runfolder.discarded_if_unused(place), errors.continued_by(go_on, place):
        advice = _advice(tried, count, settings, federation, place, console, resume, go_on)
    length = f"{counted(settings.rounds, 'round')}, {counted(count, 'seed')}"
    title = f"How many models for {federation.name}, {counted(len(federation), 'client')} ({length})?"
    picture = report.draw(advice, output or place / "advice.png", title)
    report.draw(advice, picture.with_suffix(".svg"), title)
    if json:
        tables.print_json({"folder": str(place), "plot": str(picture)} | advice.values())
        return
    tables.show(console, report.table(advice, title))
    for sentence in advice.sentences():
        errors.paragraph(console, Text(sentence))
    console.print(f"Plot: [bold]{places.shown(picture)}[/bold]", soft_wrap=True)


def parse(ks: str) -> list[int]:
    """The numbers of ``1-4,8``, in order."""
    found: set[int] = set()
    for piece in filter(None, (p.strip() for p in ks.split(","))):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(first) < 1 or (dash and int(last) < int(first)):
            raise ValueError(f"ks must be numbers ≥ 1 or ranges of them, as 1-6 or 1,2,4; {piece!r} is neither")
        found |= set(range(int(first), int(last or first) + 1))
    if not found:
        raise ValueError("ks names no K: give a range, as 1-6, or a list, as 1,2,4")
    return sorted(found)


def _settings(given: dict[str, Any], method_flags: dict[str, str | None], file: dict[str, Any]) -> Settings:
    if "models" in method_flags:
        raise ValueError(
            "--models cannot be given, since advise-k looks for the best number of models: name those to try with --ks 1-6"
        )
    if "method" in method_flags:
        raise ValueError("--method cannot be given: advise-k chooses the number of models of fedfew")
    method = file.pop("method", {})
    hyperparameters = {name: value for name, value in method.items() if name != "models"} if isinstance(method, dict) else {}
    settings = resolve(given, method_flags, file | {"method": hyperparameters | {"name": "fedfew"}})
    if settings.validates:
        name = "keep" if settings.keep == "best" else "early_stopping"
        raise ValueError(
            f"{name} is {getattr(settings, name)!r}, but advise-k uses the validation data to compare numbers of models, and "
            "none are left to compare rounds on: leave it out"
        )
    if settings.attack != "none":
        raise ValueError(
            f"attack is {settings.attack!r}, but advise-k compares all clients' losses, and attackers have none: leave it out"
        )
    if "score_every" not in given and "score_every" not in file:
        settings = replace(settings, score_every=settings.rounds)  # only the last round is needed
    return settings


def _held_out(settings: Settings, share: float, console: Console) -> Federation:
    """Split by the data set's own rules (patients stay together) if it is partitioned here; else from the training samples."""
    from fedfew.data.division import TEST_SHARE
    from fedfew.data.prepared import is_prepared
    from fedfew.evaluation.choosing_k import held_out

    if not 0 < share < 1:
        raise ValueError(f"hold_out must lie between 0 and 1, not {share}")
    rest = 1 - (TEST_SHARE if settings.test_share is None else settings.test_share)
    if not is_prepared(settings.dataset):
        settings = replace(settings, val_share=share * rest)
    return held_out(load_data(settings, console), share, settings.data_seed)


def _keep(place: Path, settings: Settings, ks: list[int], seeds: int, share: float, resume: bool) -> None:
    own = {"ks": ",".join(map(str, ks)), "seeds": seeds, "hold_out": share}
    runfolder.write_first_config(place, own | settings.as_config(), resume, "advice")


def _advice(
    ks: list[int],
    seeds: int,
    settings: Settings,
    federation: Federation,
    place: Path,
    console: Console,
    resume: bool,
    go_on: str,
) -> Advice:
    from fedfew.evaluation.choosing_k import Advice, observed, regret
    from fedfew.evaluation.costs import cost_of
    from fedfew.util.devices import device_named

    here = federation.to(device_named(settings.device))
    runs, costs = [], {}
    with progress.display(console, runs=seeds * len(ks) + 1) as display:
        alone = replace(settings, method="local", method_settings={}, dp_noise=0.0)  # who trains alone sends nothing
        local = train_in(place / f"local-{alone.seed}", alone, federation, display.run("local"), resume, go_on)
        for seed in range(settings.seed, settings.seed + seeds):
            for K in ks:
                with_k = replace(settings, seed=seed, method_settings=settings.method_settings | {"models": K})
                show = display.run(f"K = {K}, seed {seed}")
                run = train_in(place / f"k{K}-{seed}", with_k, federation, show, resume, go_on)
                runs.append(observed(run, here))
                costs[K] = cost_of(with_k, federation)
    return Advice(_finite(runs, console), regret(local, here, seed=settings.seed), costs, len(federation), local.task)


def _finite(runs: list[Observed], console: Console) -> tuple[Observed, ...]:
    """Those whose losses on the samples held out are finite; notes name the others."""
    found = []
    for run in runs:
        if math.isfinite(run.validation.sum()):
            found.append(run)
        else:
            note(console, f"K = {run.models}, seed {run.seed} is left out: its losses are infinite, training diverged. Lower lr")
    if not found:
        raise ValueError("the losses of all runs are infinite: training diverged. Lower lr, or standardise the targets")
    return tuple(found)
