"""The model of a run, by the settings that the run recorded."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedfew import models
from fedfew.models import ModelFactory


def named_factory(settings: dict[str, Any]) -> ModelFactory:
    """The factory of a run whose model has a name. A module of the user's own is never imported by its name in the run."""
    name, data = settings["model"], settings["federation"]

    def build() -> nn.Module:
        if name not in models.MODELS:
            raise ValueError(
                f"the run was made with the module {name!r}, which is not one of fedfew's own: pass it as model=… "
                "(a zero-argument callable; on the command line --model module:factory)"
            )
        return models.factory(name, data["shape"], data["classes"], data.get("vocabulary"), data.get("padding"))()

    return build
