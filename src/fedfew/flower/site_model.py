"""The model that a client uses: its scores as values of a message, and the files that hold it at the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedfew.adapters import TrainedPart
from fedfew.data import tensorfile
from fedfew.flower import private_files
from fedfew.flower.site_task import Model, Task
from fedfew.models.served import ServedModel
from fedfew.models.state import frozen_state, load_state
from fedfew.stack import Tree, named_leaves, take
from fedfew.training.data_record import DataRecord
from fedfew.training.scoring import ServedScores
from fedfew.training.setup import name_of
from fedfew.util.files import write_atomically


def save(folder: Path, task: Task, model: Model, candidates: Tree, scores: ServedScores) -> None:
    """Save what the client uses: one model's state, or with a mixture or label prior that of a ServedModel. ``fedfew predict``
    and ``fedfew.load_model`` read it."""
    private_files.make_folder(folder)
    chosen = int(scores.choice[0])
    used = [chosen] if scores.mixture is None else range(scores.mixture.shape[1])
    frozen = frozen_state(task.factory())
    modules = [load_state(task.factory(), frozen | dict(named_leaves(take(candidates, k)))) for k in used]
    prior = None if task.data.train.log_prior is None else task.data.train.log_prior[0]
    plain = scores.mixture is None and prior is None
    weights = None if scores.mixture is None else scores.mixture[0]
    state = (modules[0] if plain else ServedModel(modules, weights, prior, task.data.task)).state_dict()
    tensors = {name: t.clone() for name, t in state.items()}
    described = {"model": _described(task, model), "served": not plain, "data": DataRecord.of(task.loaded).document}
    tensorfile.write(folder / "model.safetensors", tensors, described, private=True)
    about = _as_values(scores) | {"round": task.round, "settings": task.settings, "served_model": not plain}
    write_atomically(folder / "choice.json", json.dumps(about, indent=1), private=True)


def _described(task: Task, model: Model) -> dict[str, Any]:
    """How to build the module, and what it takes."""
    settings, samples = task.settings, task.loaded.train
    return {
        **{name: settings.get(name) for name in ("shape", "classes", "vocabulary", "padding", "batch_norm", "method")},
        "name": name_of(model),
        "task": task.data.task,
        "pixels": samples.pixels,
        "dtype": str(samples.x.dtype).removeprefix("torch."),
        **TrainedPart.recorded(settings).document(),
    }


def reported(scores: ServedScores) -> dict[str, Any]:
    """What is sent of them. A score that there is not (R² of equal targets) is left out, and all of them where there is no loss
    either."""
    values = _as_values(scores)
    if not bool(scores.score.isnan().any()):
        return values
    return {name: values[name] for name in ("choice", "loss")} if not bool(scores.loss.isnan().any()) else {}


def _as_values(scores: ServedScores) -> dict[str, Any]:
    return {"choice": int(scores.choice[0]), "accuracy": float(scores.score[0]), "loss": float(scores.loss[0])}
