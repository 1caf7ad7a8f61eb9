"""The field's benchmark with Flower's simulation (``flwr[simulation]`` on PyPI, on Ray); called by ``field.py``.

One actor a core, each with one thread; an actor keeps the model and the images it has read; nothing is evaluated on clients.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from field_task import BATCH, COHORT, EACH, LR, USERS, Clock, Task, inputs, loss_of

FOLDER = "FIELD_FOLDER"  # where an actor finds the task
client_app = ClientApp()


@cache
def at_home() -> tuple[Task, torch.nn.Module]:
    """What an actor reads once."""
    torch.set_num_threads(1)
    task = Task(Path(os.environ[FOLDER]))
    return task, task.model().to(task.device)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    task, model = at_home()
    content: Any = message.content
    user, number = content["config"]["user"], content["config"]["server-round"]
    model.load_state_dict(content["arrays"].to_torch_state_dict())
    order = task.order(number, user)
    x = inputs(task.array("x")[user])[order].to(task.device)
    y = torch.from_numpy(task.array("y")[user].copy())[order].to(task.device)
    model.train()
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    loss = torch.zeros(())
    for some_x, some_y in zip(x.split(BATCH), y.split(BATCH), strict=True):
        sgd.zero_grad()
        loss = loss_of(model, some_x, some_y)
        loss.backward()
        sgd.step()
    metrics = MetricRecord({"loss": float(loss.detach()), "num-examples": EACH})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class GivenCohorts(FedAvg):
    """Flower's FedAvg on the task's cohorts."""

    def __init__(self, task: Task) -> None:
        super().__init__(fraction_train=COHORT / USERS, fraction_evaluate=0.0, min_available_nodes=USERS)
        self.task = task
        self.clock = Clock()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for user, message in zip(self.task.cohort(server_round), messages, strict=True):
            own = ConfigRecord({"user": user, "server-round": server_round})
            message.content = RecordDict({"arrays": arrays, "config": own})
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        answers = list(replies)
        failed = [message.error.reason for message in answers if message.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(answers)} clients failed in round {server_round}: {failed[0]}")
        aggregated = super().aggregate_train(server_round, answers)
        self.clock.tick()
        return aggregated


def main(folder: Path) -> None:
    task = Task(folder)
    os.environ |= {FOLDER: str(folder), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    server_app = ServerApp()
    strategy = GivenCohorts(task)
    last: dict[str, Any] = {}

    @server_app.main()
    def serve(grid: Any, context: Context) -> None:
        result = strategy.start(grid, ArrayRecord(task.model().state_dict()), num_rounds=task.rounds)
        last.update(result.arrays.to_torch_state_dict())

    actors = task.settings["threads"]
    gpus = 1 / actors if task.device.type == "cuda" else 0
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=USERS,
        backend_config={
            "init_args": {"num_cpus": actors, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": gpus},
        },
    )
    task.finish("flwr", strategy.clock, last, counted=False, version=version("flwr"), how=f"Ray, {actors} actors of one thread")


if __name__ == "__main__":
    import field_flwr  # under its own name, by which the actors find the client app

    field_flwr.main(Path(sys.argv[1]))
