"""The ServerApp: a run's configuration in, a run's folder out."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.strategy import FedFewStrategy
from fedfew.models import ModelFactory


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
