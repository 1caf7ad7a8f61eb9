"""A client's mixture distilled into one model: it answers like the mixture at the cost of one forward pass.

The student begins as the model with the largest weight in the client's mixture and learns the mixture's probabilities on the
client's own training inputs (Hinton et al. 2015). Labels are not used, and nothing leaves the client.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.federation import Federation, Samples
from fedfew.models.served import ServedModel
from fedfew.training.run import Run


@dataclass(frozen=True)
class Distilled:
    """A student, and how it compares with the mixture on the client's test inputs."""

    module: nn.Module  # in evaluation mode; with the client's label prior inside, if it has one
    agreement: float  # share of test inputs on which both predict the same class
    agreement_before: float  # the same of the single model that the student began as
    divergence: float  # mean KL(mixture ‖ student)
    divergence_before: float
    accuracy: float  # of the student
    mixture_accuracy: float


def distill(
    run: Run,
    client: int | str,
    federation: Federation,
    *,
    epochs: int = 20,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> Distilled:
    """Distil the mixture that a client (a number or a name) uses into one model.

    federation: the run's, of which only this client's inputs are used. lr, batch_size: as in training unless given.
    """
    number = run.data.client_number(client, run.clients)
    teacher = run.model_of(number)
    if run.task.name != "classification":
        raise ValueError(f"a mixture is distilled for classes alone, and the task is {run.task.name}")
    if not isinstance(teacher, ServedModel) or len(teacher.models) == 1:
        why = (
            "serve is 'best'" if _serve(run) == "best" else f"{run.settings['method']['name']} serves each client a single model"
        )
        raise ValueError(f"client {client} uses one model, not a mixture: there is nothing to distil ({why})")
    if len(federation) != run.clients:
        raise ValueError(f"the federation has {len(federation)} clients, but the run {run.clients}: give the run's federation")
    best = copy.deepcopy(teacher.models[int(teacher.log_weights.argmax())])
    student = ServedModel([best], None, teacher.log_prior).eval()
    x, unseen = (_inputs(samples, number) for samples in (federation.train, federation.test))
    before = compared(student, teacher, unseen)
    _fit(student, teacher, x, epochs, lr or float(run.settings["lr"]), batch_size or int(run.settings["batch_size"]), seed)
    after = compared(student, teacher, unseen)
    module = student if student.log_prior is not None else student.models[0]
    right = federation.test.of(number)[1].cpu()
    accuracies = (_accuracy(model, unseen, right) for model in (student, teacher))
    return Distilled(module.eval(), after[0], before[0], after[1], before[1], *accuracies)


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over samples of KL(p ‖ q) = Σ_y p(y) (log p(y) − log q(y)), p the teacher's probabilities; from logits."""
    return F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)


@torch.no_grad()
def compared(student: nn.Module, teacher: nn.Module, x: Tensor) -> tuple[float, float]:
    """On how many of these inputs both predict the same class, as a share; and the divergence."""
    ours, theirs = student(x), teacher(x)
    return float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()), float(divergence(ours, theirs))


def _fit(student: nn.Module, teacher: nn.Module, x: Tensor, epochs: int, lr: float, batch_size: int, seed: int) -> None:
    """SGD on the divergence. The modules stay in evaluation mode: BatchNorm's statistics are those of training. The student is
    left as it was after the epoch that brought it closest to the mixture. An epoch that ends farther away than the first began
    is undone, and half the step is taken from there: with statistics that stay, a step fit for training may be far too large."""
    with torch.no_grad():
        wanted = _answers(teacher, x)
    learned = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learned, lr=lr)
    order = torch.Generator().manual_seed(seed)
    begun = least = _distance(student, x, wanted)
    closest = [p.detach().clone() for p in learned]
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=order).split(batch_size):
            optimizer.zero_grad()
            divergence(student(x[batch]), wanted[batch]).backward()
            optimizer.step()
        distance = _distance(student, x, wanted)
        if distance < least:
            least, closest = distance, [p.detach().clone() for p in learned]
        elif not distance <= begun:  # farther, or not finite
            _set(learned, closest)
            optimizer.param_groups[0]["lr"] /= 2
    _set(learned, closest)


@torch.no_grad()
def _distance(student: nn.Module, x: Tensor, wanted: Tensor) -> float:
    return float(divergence(_answers(student, x), wanted))


def _answers(module: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([module(part) for part in x.split(1024)])


@torch.no_grad()
def _set(parameters: list[nn.Parameter], values: list[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


@torch.no_grad()
def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(-1) == y).double().mean())


def _inputs(samples: Samples, client: int) -> Tensor:
    return samples.inputs(samples.rows(client)).cpu()


def _serve(run: Run) -> str:
    return str(run.settings.get("serve", "best"))
