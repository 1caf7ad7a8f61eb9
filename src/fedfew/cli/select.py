"""``fedfew select``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedfew.cli import errors, flags, places, selection
from fedfew.cli.show import OwnLoss, OwnMethod, OwnModel
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.config import LocalTraining
    from fedfew.evaluation.fit import Fit
    from fedfew.evaluation.selection import Joined

NAMED = 4  # clients that use a model


@errors.readable
def select(
    folder: Annotated[Path, typer.Argument(metavar="EXPORT_OR_RUN", help="The folder of an export, or of a run.")],
    data: Annotated[
        Path,
        typer.Option(
            help="Labelled data of the kind trained on: a .csv, .parquet or .jsonl table, a folder class/image.png, or a .npz "
            "file with the arrays x, y and, optionally, groups. Of language models texts without labels."
        ),
    ],
    label: Annotated[
        str | None, typer.Option(help="The column of labels (default: its name in training).", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="A column (e.g. patients) whose rows are held out together.", show_default=False)
    ] = None,
    validation: Annotated[float, typer.Option(help="Fraction of the samples held out for the scores. 0: no scores.")] = 0.2,
    adapt_epochs: Annotated[int, typer.Option(min=0, help="Epochs of further training of the chosen model.")] = 0,
    lr: Annotated[float | None, typer.Option(help="Learning rate (default: as in training).", show_default=False)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Batch size (default: as in training).", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the hold-out split and of the batches.")] = 0,
    keep_adapted: Annotated[bool, typer.Option("--keep-adapted", help="Use the adapted model even if it is worse.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the model to this file (.safetensors).", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    model: OwnModel = None,
    method: OwnMethod = None,
    loss: OwnLoss = None,
    json: flags.Json = False,
) -> None:
    """Choose the model that fits new data best: for a site that took no part in the training.

    Works offline, and nothing leaves this machine. Part of the samples are held out; where the file has groups, all samples of a
    group stay on one side. The others choose the model and, with --adapt-epochs, fine-tune it. Scores are computed on the samples
    held out. An adapted model with a higher loss than before is not used.

    Example: [cyan]fedfew select digits-models --data mine.npz --adapt-epochs 3 -o model.safetensors[/cyan]
    """
    from fedfew.evaluation.selection import join
    from fedfew.tasks import recorded_task

    selection.check_output(output, force)
    source = selection.find(folder, model, method, loss)
    x, y, groups, record = selection.read(data, source, label, group)
    training = source.training(adapt_epochs, lr, batch_size) if adapt_epochs else None
    console = Console(stderr=json, highlight=False, soft_wrap=True)
    with _progress(console, adapt_epochs) as on_epoch:
        joined = join(
            source.models,
            x,
            y,
            validation=validation,
            groups=groups,
            training=training,
            keep_adapted=keep_adapted,
            pixels=source.about["pixels"],
            label_prior=source.settings.get("label_prior", "none"),
            prior_strength=source.settings.get("prior_strength", 1.0),
            seed=seed,
            on_epoch=on_epoch,
            task=source.about.get("task"),
            loss=source.criterion,
        )
    called = recorded_task({"federation": source.about}).score
    document = _document(joined, len(y), called) | {"source": source.name, "training": _training(training)}
    if output is not None:
        selection.write(output, joined, source, record, document)
    if json:
        from fedfew.report import tables

        tables.print_json(document | {"file": None if output is None else str(output)})
        return
    _show(console, joined, output, source.users, called)


def _training(training: LocalTraining | None) -> dict[str, Any] | None:
    if training is None:
        return None
    values = asdict(training)
    for name in ("rounds", "schedule", "warmup_rounds", "step_factor"):  # there are no rounds here
        del values[name]
    return {"epochs": values.pop("local_epochs")} | values


def _document(joined: Joined, samples: int, called: str) -> dict[str, Any]:
    def scores(of: Fit | None) -> dict[str, float] | None:
        if of is None:
            return None
        return asdict(of) | ({"accuracy": of.score} if called == "accuracy" else {})  # by its name for classes, too

    return {
        "model": joined.model,
        "samples": samples,
        "models": [scores(one) for one in joined.fits],
        "validation_samples": joined.held_out,
        "before": scores(joined.before),
        "after": scores(joined.after),
        "adapted": joined.adapted,
    }


def _show(console: Console, joined: Joined, output: Path | None, users: list[list[str]] | None, called: str) -> None:
    from fedfew.report import tables

    named = ["used by"] if users else []
    table = tables.empty(counted(joined.chosen_by, "sample"), "model", "mean loss", f"{called}, %", *named)
    for k, one in enumerate(joined.fits):
        bold = "[bold]{}[/bold]" if k == joined.model else "{}"
        cells = [bold.format(text) for text in (str(k), f"{one.loss:.4f}", tables.percent(one.score))]
        table.add_row(*cells, *([_some(users[k])] if users else []))
    tables.show(console, table)
    console.print(f"Model {joined.model} fits best.")
    if joined.before is not None:
        title = f"model {joined.model} on {counted(joined.held_out, 'sample')} held out"
        scores = tables.empty(title, "", "mean loss", f"{called}, %")
        for label, score in (("as received", joined.before), ("adapted", joined.after)):
            if score is not None:
                scores.add_row(label, f"{score.loss:.4f}", tables.percent(score.score))
        tables.show(console, scores)
        if called == "accuracy":
            console.print(f"One sample is {100 / joined.held_out:.3g} points of accuracy here.")
    if joined.worse:
        used = "It is used nevertheless (--keep-adapted)." if joined.adapted else "The model is used as received."
        console.print(f"[yellow]Adapting made it worse[/yellow]: the loss on the samples held out did not fall. {used}")
    elif joined.before is not None and joined.after is not None:
        less = joined.after.score < joined.before.score
        remark = f" (its {called} fell as well, but the loss decides)" if less else ""
        console.print(f"Adapting lowered the loss{remark}: the adapted model is used.")
    if output is not None:
        console.print(f"The model: [bold]{places.shown(output)}[/bold]")


def _some(names: list[str]) -> str:
    from fedfew.report import tables

    listed = ", ".join(tables.name_cell(name) for name in names[:NAMED])
    return f"{listed} and {len(names) - NAMED} more" if len(names) > NAMED else listed or "no client"


@contextmanager
def _progress(console: Console, epochs: int) -> Iterator[Callable[[int, Fit], None]]:
    """One line per epoch, at most twenty; on a terminal, a bar instead."""
    from rich.progress import Progress

    if not console.is_terminal or not epochs:
        yield (
            lambda epoch, one: (
                console.print(f"epoch {epoch}/{epochs}: loss on the samples held out {one.loss:.4f}")
                if epoch * 20 // epochs > (epoch - 1) * 20 // epochs
                else None
            )
        )
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("adapting", total=epochs)
        yield lambda epoch, one: bar.update(task, completed=epoch, description=f"adapting, loss {one.loss:.4f}")
