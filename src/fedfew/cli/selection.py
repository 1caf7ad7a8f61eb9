"""What ``fedfew select`` reads and writes: the models of an export or a run, a new client's samples, and the chosen model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.cli import places, runfolder
from fedfew.cli.show import load, own_factory, own_loss

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from fedfew.engines import LocalTraining
    from fedfew.evaluation.selection import Joined
    from fedfew.tasks import Criterion
    from fedfew.training.data_record import DataRecord


@dataclass(frozen=True)
class Source:
    """Models to choose from."""

    models: list[nn.Module]
    about: dict[str, Any]  # the model's entry on an export's card
    settings: dict[str, Any]  # of the training
    name: dict[str, Any]  # where the models come from, for the note in the file written
    data: DataRecord  # names and preprocessing
    criterion: Criterion  # the loss to compare them by
    users: list[list[str]] | None  # of each model, the names of the clients that use it, where known

    def training(self, epochs: int, lr: float | None, batch_size: int | None) -> LocalTraining:
        """As the clients trained, but for what is given."""
        from fedfew.config import LocalTraining

        given = {"lr": lr, "batch_size": batch_size}
        changes = {name: value for name, value in given.items() if value is not None}
        return LocalTraining.taken_from(self.settings, local_epochs=epochs, **changes)


def find(folder: Path, model: str | None, method: str | None = None, loss: str | None = None) -> Source:
    """The models in the folder of an export (every file of which is checked) or of a run."""
    from fedfew import export

    if export.is_export(folder):
        found = export.read(folder, own_factory(model), own_loss(loss))
        listed = [row.get("client_names") for row in found.card["models"]]
        users = [names or [] for names in listed] if any(listed) else None
        about, settings = found.card["model"], found.training_settings
        return Source(found.models, about, settings, {"card_sha256": found.sha256}, found.data, found.criterion, users)
    run = load(folder, model, method, loss)
    if not run.models:
        raise ValueError(f"{run.settings['method']['name']} keeps no whole models on the server: there are none to choose from")
    about = export.model_about(run, runfolder.about_data(folder))
    users = None
    if run.data.client_names and run.serves_server_models and run.has_choice:
        choice = run.choice.tolist()
        users = [
            [name for name, k in zip(run.client_names, choice, strict=True) if k == model] for model in range(len(run.models))
        ]
    origin: dict[str, Any] = {"run": folder.name, "round": run.round}
    return Source(run.models, about, run.settings, origin, run.data, run.criterion, users)


def read(
    path: Path, source: Source, label: str | None, group: str | None
) -> tuple[NDArray[Any], NDArray[np.int64], Any, DataRecord]:
    """Samples, labels and (where there are any) groups of a new client's file, and the preprocessing that is its own."""
    from fedfew.data import new_data
    from fedfew.training.new_client import own_record, targets_of
    from fedfew.training.sample_format import SampleFormat, samples_of

    format = SampleFormat.of(source.about)
    columns = (label,) if label else source.data.label_columns(format.task)
    found = new_data.read(path, source.data.kind, source.data.columns, columns)
    language = format.task == "language-modelling" and source.data.kind == "text"  # needs texts alone
    if found.labels is None and not language:
        named = f"the column {columns[0]!r} is" if len(columns) == 1 else f"the columns {', '.join(map(repr, columns))} are"
        table = named if columns else "a column of labels (--label) is"
        kinds = {".npz": "an array y is"} | dict.fromkeys(new_data.TABLES, table)
        needed = kinds.get(path.suffix.lower(), "a folder per class is")
        raise ValueError(f"{path} has no labels: {needed} needed. Without labels use 'fedfew predict … --new-client'")
    if len(found) == 0:
        raise ValueError(f"{path} has no rows")
    if group is not None and group not in found.columns:
        raise ValueError(f"{path} has no column {group!r} to group by (columns: {', '.join(found.columns) or 'none'})")
    record = own_record(source.data, found.x)
    try:
        x = samples_of(found.x, record, format)
        y = targets_of(found.labels, source.data, format, x)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return x, y.numpy(), found.columns.get(group or "groups"), record


def check_output(path: Path | None, force: bool) -> None:
    if path is None:
        return
    if path.suffix != ".safetensors":
        raise ValueError(f"--output must end in .safetensors, not {path.name!r}")
    places.check_output(path, force)


def write(path: Path, joined: Joined, source: Source, record: DataRecord, document: dict[str, Any]) -> None:
    from fedfew.export import model_file

    about = {"model": source.about, "number": joined.model, "chosen": document, "data": record.document}
    model_file.write(path, joined.without_prior, about, joined.log_prior)
