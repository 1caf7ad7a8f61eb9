"""MLflow: a server, or a database file. The optional extra ``mlflow``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

EXPERIMENT = "fedfew"  # unless $MLFLOW_EXPERIMENT_NAME says
AT_ONCE = 100  # parameters that MLflow takes in one call
# A server that is down would else be tried for minutes before the first round ends.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class MLflow:
    """target: a tracking URI; unless given $MLFLOW_TRACKING_URI, else the file mlflow.db here."""

    def __init__(self, target: str, folder: Path | None) -> None:
        self.uri = target or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"

    def begin(self, settings: Mapping[str, Any], name: str, known: str | None) -> str | None:
        for variable, value in PATIENCE.items():
            os.environ.setdefault(variable, value)
        self.client = MlflowClient(tracking_uri=self.uri)
        if known is not None:
            self.client.update_run(known, status="RUNNING")
            self.run = known
            return known
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self.client.get_experiment_by_name(wanted)
        number = self.client.create_experiment(wanted) if experiment is None else experiment.experiment_id
        self.run = str(self.client.create_run(number, run_name=name).info.run_id)
        params = [Param(key, str(value)) for key, value in settings.items()]
        for first in range(0, len(params), AT_ONCE):
            self.client.log_batch(self.run, params=params[first : first + AT_ONCE])
        return self.run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self.client.log_batch(self.run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def end(self, finished: bool, files: Iterable[Path]) -> None:
        for path in files:
            self.client.log_artifact(self.run, str(path))
        self.client.set_terminated(self.run, "FINISHED" if finished else "KILLED")
