"""A method of fedfew as a strategy that a ServerApp can start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedfew import models
from fedfew.flower.grid import FlowerNetwork
from fedfew.flower.plan import Plan
from fedfew.flower.server_loop import Course
from fedfew.training.run import ModelFactory, Run
from fedfew.training.settings import find_model
from fedfew.util.files import folder_locked


class FedFewStrategy:
    """Trains the plan's method over a grid.

    Flower's own strategies wait for nodes without end and know no quorum; this one keeps its own deadline, checks every reply and
    writes checkpoints, and :meth:`start` returns the run.
    """

    def __init__(self, plan: Plan, model: ModelFactory | None = None) -> None:
        self.plan = plan
        self.model = model

    def start(self, grid: Grid) -> Run:
        """Train to the last round; goes on from the newest checkpoint in the plan's folder."""
        with folder_locked(Path(self.plan.folder)):
            return Course(self.plan, FlowerNetwork(grid), self._factory).run()

    def _factory(self, data: dict[str, Any]) -> ModelFactory:
        found = self.model or find_model(self.plan.model)
        if not isinstance(found, str):
            return found
        shape, classes, vocabulary = tuple(data["shape"]), data["classes"], data["vocabulary"]
        return lambda: models.build(found, shape, classes, vocabulary)
