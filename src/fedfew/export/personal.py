"""An export of the models that clients use themselves, for methods whose clients have models of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfew.export.folder import DISTIL, WholeModels, check_one_model_each, write_as
from fedfew.models.served import ServedModel
from fedfew.stack import tensor
from fedfew.training.run import Run


def write_personal(run: Run, folder: str | Path, *, about: Mapping[str, Any] | None = None, force: bool = False) -> Path:
    """Write the model that each client uses, in the clients' order, and their card to a folder that is not there yet.

    For methods whose clients have models, or parts of models, of their own (Ditto, FedRep, …), which :func:`fedfew.export.write`
    does not have. about, force: as there.
    """
    check_one_model_each(run)
    if run.state.mixture is not None and run.state.mixture.shape[1] > 1:
        advice = f", or with {DISTIL}" if run.task.name == "classification" else ""
        raise ValueError(
            "clients predict with mixtures of the server's models: export without --personal (fedfew.export.write), with all "
            f"that they use{advice}"
        )
    return write_as(PersonalModels(), run, folder, about or {}, force, anonymous=False)


class OnePerClient(WholeModels):
    """One model per client, in the clients' order."""

    def used(self, run: Run) -> Iterable[nn.Module]:
        """What the clients predict with: a model alone, or with the client's prior."""
        return (run.model_of(client) for client in range(run.clients))

    def modules(self, run: Run) -> Sequence[nn.Module]:
        return [m.models[0] if isinstance(m, ServedModel) else m for m in self.used(run)]

    def served(self, run: Run) -> dict[str, Tensor]:
        prior = {"log_prior": tensor(run.state.priors, "log_prior")} if run.state.priors else {}
        return {"choice": torch.arange(run.clients), **prior}


class PersonalModels(OnePerClient):
    """Those that clients have from the training."""

    def about(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        return {"scores_are_of_these_models": True, "personal": True}
