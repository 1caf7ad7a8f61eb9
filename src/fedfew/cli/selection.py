"""What ``fedfew select`` reads and writes: the models of an export or a run, a new client's samples, and the chosen model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.cli import runfolder
from fedfew.cli.show import load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from fedfew.engines import LocalTraining
    from fedfew.evaluation.selection import Joined

KINDS = {"f": "floating-point numbers", "u1": "bytes (uint8, which are read as pixels)", "i": "whole numbers (token ids)"}


@dataclass(frozen=True)
class Source:
    """Models to choose from."""

    models: list[nn.Module]
    about: dict[str, Any]  # what an export's card says of the model
    settings: dict[str, Any]  # of the training
    name: dict[str, Any]  # where the models come from, for the note in the file written

    def training(self, epochs: int, lr: float | None, batch_size: int | None) -> LocalTraining:
        """As the clients trained, but for what is given."""
        from fedfew.config import LocalTraining

        given = {"lr": lr, "batch_size": batch_size}
        changes = {name: value for name, value in given.items() if value is not None}
        return LocalTraining.taken_from(self.settings, local_epochs=epochs, **changes)


def find(folder: Path, model: str | None) -> Source:
    """The models in the folder of an export (every file of which is checked) or of a run."""
    from fedfew import export
    from fedfew.training.settings import find_model

    if export.is_export(folder):
        factory: Any = find_model(model) if model and ":" in model else None
        found = export.read(folder, factory)
        return Source(found.models, found.card["model"], found.card["training"], {"card_sha256": found.sha256})
    run = load(folder, model)
    if not run.models:
        raise ValueError(f"{run.settings['method']['name']} keeps no models on the server, so there are none to choose from")
    about = export.model_about(run, runfolder.about_data(folder))
    return Source(run.models, about, run.settings, {"run": folder.name, "round": run.round})


def read(path: Path, about: dict[str, Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any] | None]:
    """The samples, labels and (where there are any) groups in a file, checked against what the models were trained on."""
    import numpy as np

    from fedfew.data.readers import npz

    arrays = npz.read_arrays(path)
    names = tuple(about.get("class_names") or ())
    if "all" not in arrays.splits:
        raise ValueError(f"{path} must hold the arrays x and y, without splits")
    x, y = arrays.numbered(names)["all"]
    if "groups" in arrays.unused:
        raise ValueError(f"{path}: groups must have one value per sample, {len(x)} in all")
    groups = arrays.columns.get("groups")
    shape, classes = tuple(about["shape"]), about["classes"]
    if x.shape[1:] != shape:
        raise ValueError(f"{path}: x must be samples of shape {list(shape)}, one row each, not {list(x.shape[1:])}")
    if about["dtype"] is not None and _kind(x.dtype) != _kind(np.dtype(about["dtype"])):
        wanted, given = KINDS.get(_kind(np.dtype(about["dtype"])), about["dtype"]), KINDS.get(_kind(x.dtype), str(x.dtype))
        raise ValueError(f"{path}: x must be {wanted}, as in the training, not {given}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError(f"{path}: x contains NaN or infinite values")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"{path}: y must be whole numbers from 0 to {classes - 1}")
    return x, y, groups


def _kind(dtype: np.dtype[Any]) -> str:
    """What samples of this type become on their way into a model: see ``as_input``."""
    return "u1" if dtype == "u1" else dtype.kind


def check_output(path: Path | None, force: bool) -> None:
    if path is None:
        return
    if path.suffix != ".safetensors":
        raise ValueError(f"--output must end in .safetensors, not {path.name!r}")
    if path.exists() and not force:
        raise ValueError(f"{path} already exists: replace it (--force), or choose another name")


def write(path: Path, joined: Joined, source: Source, document: dict[str, Any]) -> None:
    from fedfew.export import model_file

    model_file.write(path, joined.module, {"model": source.about, "number": joined.model, "chosen": document})
