"""``fedfew predict``."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedfew.cli import errors, places
from fedfew.cli.show import OwnLoss, OwnMethod, OwnModel, load, own_factory, own_loss
from fedfew.util.files import write_atomically
from fedfew.util.printable import for_csv, printable

if TYPE_CHECKING:
    from fedfew.data.new_data import NewData
    from fedfew.training.prediction import Predictor


@errors.readable
def predict(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="EXPORT_OR_RUN",
            help="The folder of an export or a run, or a model's file: of 'fedfew select -o', or of a site (model.safetensors).",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="New data of the kind trained on: a .csv, .parquet or .jsonl table, a folder of images, or a .npz with x."
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(help="The client whose model is used (default: the column of clients in the data).", show_default=False),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labelled data of a client that took no part: the model is chosen by them.", show_default=False),
    ] = None,
    new_client: Annotated[
        bool,
        typer.Option(
            "--new-client", help="The data are of a client that took no part and has no labels: the model is chosen by the data."
        ),
    ] = False,
    label: Annotated[
        str | None, typer.Option(help="The column of labels in --labels (default: as in training).", show_default=False)
    ] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add a column with the probability of each class.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv file (default: standard output).", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    model: OwnModel = None,
    method: OwnMethod = None,
    loss: OwnLoss = None,
) -> None:
    """Predict the classes of new data: raw data in, names out. For other tasks: the numbers, or 0 and 1 per label.

    Data are preprocessed as in training. Every row is answered by the model (or mixture, with the label prior) of its client.

    Example: [cyan]fedfew predict runs/hospitals --data new.csv --client Basel -o predictions.csv[/cyan]
    """
    from fedfew.data import new_data

    if output is not None:
        places.check_output(output, force)
    if (client is not None) + (labels is not None) + new_client > 1:
        raise ValueError(
            "--client names a client of the training, --labels is for a client that took no part, --new-client for one without "
            "labels: give one of them"
        )
    found = _opened(source, model, method, loss)
    new = new_data.read(data, found.data.kind, found.data.columns)
    if len(new) == 0:
        raise ValueError(f"{data} has no rows")
    notes = list(new.notes)
    if labels is not None:
        found = _chosen_by_labels(found, labels, label)
    elif new_client:
        prior = found.training_settings.get("label_prior", "none") != "none"
        notes.append(
            f"the model {'and the label prior are' if prior else 'is'} chosen by the data alone; --labels would choose better"
        )
        found = found.for_new_client(new.x)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for note in notes:
        console.print(f"note: {printable(note)}", style="yellow", markup=False)
    whose = client if labels is not None or new_client or client is not None else _clients(found, new, data)
    answers = _answers(found, new, whose)
    if proba:
        names = [_cell(f"probability of {name}") for name in found.class_names]
        columns = found.predict_proba(new.x, whose).T.tolist()
        answers |= {name: [f"{p:.6g}" for p in column] for name, column in zip(names, columns, strict=True)}
    text = _csv(new, whose if isinstance(whose, list) else None, answers)
    if output is None:
        print(text, end="")
        return
    write_atomically(output, text)
    counted = f" ({_counts(answers['prediction'])})" if found.sample_format.task == "classification" else ""
    console.print(f"{len(new)} predictions{counted}: {output}", markup=False)


def _chosen_by_labels(found: Predictor, labels: Path, label: str | None) -> Predictor:
    """The model of a client that took no part, chosen by labelled data; label: their column, if not the one of training."""
    from fedfew.data import new_data

    columns = (label,) if label else found.data.label_columns(found.sample_format.task)
    mine = new_data.read(labels, found.data.kind, found.data.columns, columns)
    if mine.labels is None:
        raise ValueError(f"{labels} has no labels (--label names their column)")
    return found.for_new_client(mine.x, mine.labels)


def _counts(predicted: Sequence[str]) -> str:
    """How often each of the ten most frequent classes was predicted."""
    return ", ".join(f"{printable(name)}: {count}" for name, count in Counter(predicted).most_common(10))


def _answers(found: Predictor, new: NewData, whose: Any) -> dict[str, list[str]]:
    """Columns of predictions: one, or with several targets or labels one of each."""
    predicted = found.predict(new.x, whose)
    if found.sample_format.task == "classification":
        return {"prediction": [_cell(str(one)) for one in predicted.tolist()]}
    columns = predicted.T.tolist() if predicted.ndim == 2 else [predicted.tolist()]
    names = [_cell(f"prediction of {name}") for name in found.class_names] if len(columns) > 1 else ["prediction"]
    return {name: [_digits(value) for value in column] for name, column in zip(names, columns, strict=True)}


def _digits(value: float) -> str:
    """As many digits as tell the number from its neighbours, of models in single precision; of several labels 0 or 1."""
    import numpy as np

    if isinstance(value, int):
        return str(value)
    single = np.float32(value)
    return str(single if float(single) == value else value)


def _opened(source: Path, model: str | None, method: str | None, loss: str | None) -> Predictor:
    """Nothing that the folder or file names is imported: code of the user's own comes from the flags alone."""
    from fedfew import export
    from fedfew.export import model_file

    factory = own_factory(model)
    if source.is_file():
        if source.suffix != ".safetensors":
            raise ValueError(
                f"{source} is no file of a model (.safetensors), nor the folder of a run or an export: give one of these"
            )
        return model_file.selected(source, factory)
    return export.read(source, factory, own_loss(loss)) if export.is_export(source) else load(source, model, method, loss)


def _clients(source: Predictor, new: NewData, path: Path) -> list[str] | None:
    """The client of each row by the column that named the clients in training; None where one model serves all."""
    column = source.data.client_column
    if column is not None and column in new.columns and source.data.client_names:
        return list(new.columns[column])
    if source.clients == 1 or source.one_for_all:
        return None
    named = f", or a column {column!r} in {path.name}" if column else ""
    raise ValueError(
        f"clients use different models: give --client NAME (there are {source.data.listed(source.clients)}){named}. "
        "For a client that took no part, give some of its labelled data (--labels FILE, or see 'fedfew select'); if it has no "
        "labels, --new-client"
    )


def _csv(new: NewData, clients: Sequence[str] | None, columns: Mapping[str, Sequence[str]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    numbers = new.names == tuple(str(i + 1) for i in range(len(new)))
    writer.writerow(["row" if numbers else "file", *(["client"] if clients else []), *columns])
    for i, name in enumerate(new.names):
        whose = [_cell(clients[i])] if clients else []
        writer.writerow([_cell(name), *whose, *(column[i] for column in columns.values())])
    return file.getvalue()


def _cell(text: str) -> str:
    """A name that a spreadsheet does not take for a formula; a number stays a number."""
    try:
        float(text)
    except ValueError:
        return for_csv(text)
    return printable(text)
