"""The field's benchmark with pfl-research (``pfl`` on PyPI); called by ``field.py``.

As its own benchmark does it: all images as tensors on the device beforehand, SimulatedBackend, FederatedAveraging, a central SGD
with learning rate 1, users weighted by their samples; no evaluation of users but in the first round, which is not timed. On
several cores ``field.py`` starts it with ``torchrun``, as pfl's guide to distributed simulations says: one process per core, each
of which trains its share of a round's users.
"""

from __future__ import annotations

import itertools
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from field_task import BATCH, COHORT, LR, Clock, Task, inputs, loss_of


class WithLoss(nn.Module):
    """The model with the two functions pfl asks for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return loss_of(self.model, x, y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        self.eval()
        with torch.no_grad():
            return {"loss": Weighted(float(loss_of(self.model, x, y)) * len(y), len(y))}


def main(folder: Path) -> None:
    task = Task(folder)
    os.environ["PFL_PYTORCH_DEVICE"] = str(task.device)  # read when pfl is imported
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops.selector import get_default_framework_module as get_ops
    from pfl.model.pytorch import PyTorchModel

    x = inputs(task.array("x")).to(task.device)
    y = torch.from_numpy(task.array("y").copy()).to(task.device)
    drawn = itertools.chain.from_iterable(((number, user) for user in task.cohort(number)) for number in itertools.count(1))
    orders = {(r, u): task.order(r, u).to(task.device) for r in range(1, task.rounds + 1) for u in task.cohort(r)}

    def dataset(of: tuple[int, int]) -> Any:
        user, order = of[1], orders[of]
        return Dataset([x[user][order], y[user][order]], user_id=user)

    clock = Clock()

    class Ticking(TrainingProcessCallback):  # type: ignore[misc]  # untyped where pfl is not installed
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            clock.tick()
            return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)

    module = WithLoss(task.model())
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=central)
    data = FederatedDataset(dataset, lambda: next(drawn))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[Ticking()],
    )
    processes = get_ops().distributed.world_size
    if processes > 1:
        used: list[list[float]] = [[]] * processes
        torch.distributed.all_gather_object(used, clock.processor)
        clock.processor = [sum(of_round) for of_round in zip(*used, strict=True)]
    if get_ops().distributed.global_rank == 0:
        how = "SimulatedBackend, one process" if processes == 1 else f"SimulatedBackend, torchrun with {processes} processes"
        task.finish("pfl", clock, module.model.state_dict(), version=version("pfl"), how=how)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
