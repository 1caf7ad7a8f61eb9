"""An export of one model per client, distilled from the client's mixture: one forward pass instead of K."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fedfew.evaluation.distillation import Distilled, distill
from fedfew.export.folder import write_as
from fedfew.export.personal import OnePerClient
from fedfew.federation import Federation
from fedfew.training.run import Run


def write_distilled(
    run: Run,
    federation: Federation,
    folder: str | Path,
    *,
    epochs: int = 20,
    about: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Path:
    """Distil every client's mixture into one model and write these with their card to a folder that is not there yet.

    federation: the run's, whose training inputs are learned from and whose test samples give the accuracies on the card. epochs:
    of distillation. about, force: as for :func:`fedfew.export.write`.
    """
    recorded = run.settings["federation"].get("fingerprint")
    if federation.fingerprint() != recorded:
        raise ValueError(f"the run was made with other data than this federation ({federation.name}): give the run's own")
    if epochs < 1:
        raise ValueError(f"epochs must be ≥ 1, not {epochs}")
    students = [distill(run, client, federation, epochs=epochs) for client in range(run.clients)]
    return write_as(DistilledModels(students, epochs), run, folder, about or {}, force, anonymous=False)


class DistilledModels(OnePerClient):
    """Those that were distilled from clients' mixtures."""

    def __init__(self, students: Sequence[Distilled], epochs: int) -> None:
        self.students, self.epochs = students, epochs

    def used(self, run: Run) -> Iterable[nn.Module]:
        return (student.module for student in self.students)

    def about(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        names = ("accuracy", "mixture_accuracy", "agreement")
        means = {name: sum(getattr(student, name) for student in self.students) / len(self.students) for name in names}
        return {"distilled": {"epochs": self.epochs} | means}

    def about_model(self, k: int) -> dict[str, Any]:
        return {"accuracy": self.students[k].accuracy, "mixture_accuracy": self.students[k].mixture_accuracy}
