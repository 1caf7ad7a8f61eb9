"""The field's benchmark with fedfew; called by ``field.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import fedfew
from fedfew.federation import Federation, Samples
from field_task import BATCH, COHORT, EACH, LR, USERS, Clock, Task


def main(folder: Path) -> None:
    task = Task(folder)
    x, y = (torch.from_numpy(task.array(name).copy()) for name in ("x", "y"))
    count = torch.full((USERS,), EACH)
    train = Samples(x.flatten(0, 1), y.flatten(), torch.arange(USERS) * EACH, count, EACH)
    one_each = Samples(train.x[:USERS], train.y[:USERS], torch.arange(USERS), torch.ones_like(count), 1)
    federation = Federation(train, one_each, 10, torch.arange(USERS), name="field")  # scored by the task, not by fedfew
    clock = Clock()
    run = fedfew.train(
        federation,
        task.model,
        fedfew.FedAvg(),
        rounds=task.rounds,
        score_every=task.rounds,
        participation=COHORT / USERS,
        batch_size=BATCH,
        lr=LR,
        seed=task.settings["seed"],
        engine=task.settings["engine"],
        device=task.settings["device"],
        on_round=lambda told: clock.tick(),
        **task.settings["fedfew"],
    )
    (model,) = run.models
    engine = run.settings["engine"]
    task.finish("fedfew", clock, model.state_dict(), version=fedfew.__version__, how=f"engine {engine}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
