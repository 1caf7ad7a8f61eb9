"""The ServerApp, and the strategy that it starts: a run's configuration in, a run's folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfew import models
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.grid import FlowerNetwork
from fedfew.flower.server_loop import ServerLoop
from fedfew.models import ModelFactory
from fedfew.training.from_settings import find_model
from fedfew.training.run import Run
from fedfew.util.files import check_writable, folder_locked


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
        found = self.model or find_model(self.config.model)
        if isinstance(found, str):
            models.check_name(found)  # the model itself is made when all sites have joined
        check_writable(Path(self.config.folder), folder=True)
        with folder_locked(Path(self.config.folder)):
            return ServerLoop(self.config, FlowerNetwork(grid), self._factory).run()

    def _factory(self, data: dict[str, Any]) -> ModelFactory:
        found = self.model or find_model(self.config.model)
        if not isinstance(found, str):
            return found
        if data["vocabulary"] and models.for_tokens(found) != found:
            raise ValueError(
                f"model is {found!r}, which takes numbers, but the sites' samples are token ids: set model='textcnn'"
            )
        shape, classes = tuple(data["shape"]), data["classes"]
        return models.factory(found, shape, classes, data["vocabulary"], data["padding"])


def server_app(model: ModelFactory | None = None, **changes: Any) -> ServerApp:
    """The app that the server runs.

    model: a function that makes your own ``nn.Module``, the same as the sites' (:func:`fedfew.flower.client_app`); unless given,
    the run's configuration names one. changes: settings of
    :class:`~fedfew.flower.deployment_config.DeploymentConfig` that override the run's configuration.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = {**context.run_config, **{name.replace("_", "-"): value for name, value in changes.items()}}
        FedFewStrategy(DeploymentConfig.read(config), model).start(grid)

    return app
