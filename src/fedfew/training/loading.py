"""Reading a run from its folder: :func:`fedfew.load`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from fedfew import methods
from fedfew.adapters import TrainedPart
from fedfew.methods import LocalOnly
from fedfew.models import ModelFactory
from fedfew.models.own import OwnModel
from fedfew.models.recorded import named_factory
from fedfew.tasks import LossFunction, own_criterion, recorded_task
from fedfew.training import checkpoint
from fedfew.training.batch_norm_policy import with_policy
from fedfew.training.own_method import NotImported
from fedfew.training.run import Run


def load(folder: str | Path, model: ModelFactory | nn.Module | None = None, loss: LossFunction | None = None) -> Run:
    """The run saved in a folder (its newest intact checkpoint).

    model: needed only for the models of a run that was made with a module of your own: the same zero-argument callable
        or instance.
    loss: needed only to compare models (``for_new_client``, ``evaluate``) of a run that was made with a loss function of your
        own: the same function.
    """
    if not isinstance(folder, (str, Path)) or Path(folder).is_file():
        given = f"{folder} is a file" if isinstance(folder, (str, Path)) else f"a {type(folder).__name__} was given"
        raise TypeError(
            f"fedfew.load reads the folder of a run, but {given}. Data are loaded with fedfew.data.load(data, label=…, client=…)"
        )
    state, refused = checkpoint.read_newest(Path(folder))
    for reason in refused:
        warnings.warn(f"{folder} is read as it was after round {state.round}: {reason}", stacklevel=2)
    settings = state.settings
    factory: ModelFactory = named_factory(settings) if model is None else OwnModel(model)
    factory = TrainedPart.recorded(settings).of(factory)
    policy = settings.get("batch_norm", "average")
    criterion = own_criterion(loss, settings.get("loss", "auto"), recorded_task(settings).name)
    if settings["method"]["name"] not in methods.METHODS:  # the scores are there without it
        absent: Any = NotImported(settings["method"]["name"])
        run = Run(state, with_policy(policy, factory, LocalOnly())[0], absent, criterion)
    else:
        run = Run(state, *with_policy(policy, factory, methods.make(**methods.recorded(settings["method"]))), criterion)
    run.folder = Path(folder)
    return run
