"""A method of fedfew as a strategy that a ServerApp can start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedfew import models
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.grid import FlowerNetwork
from fedfew.flower.server_loop import ServerLoop
from fedfew.models import ModelFactory
from fedfew.training.from_settings import find_model
from fedfew.training.run import Run
from fedfew.util.files import folder_locked


class FedFewStrategy:
    """Trains a method over a grid.

    Flower's own strategies wait for nodes without a time limit and have no quorum; this one has a deadline, checks every reply
    and writes checkpoints, and :meth:`start` returns the run.
    """

    def __init__(self, config: DeploymentConfig, model: ModelFactory | None = None) -> None:
        self.config = config
        self.model = model

    def start(self, grid: Grid) -> Run:
        """Train to the last round, from the newest checkpoint in the folder if there is one."""
        with folder_locked(Path(self.config.folder)):
            return ServerLoop(self.config, FlowerNetwork(grid), self._factory).run()

    def _factory(self, data: dict[str, Any]) -> ModelFactory:
        found = self.model or find_model(self.config.model)
        if not isinstance(found, str):
            return found
        shape, classes = tuple(data["shape"]), data["classes"]
        return models.factory(found, shape, classes, data["vocabulary"], data["padding"])
