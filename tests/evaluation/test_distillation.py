"""A mixture distilled into one model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fedfew
from fedfew.evaluation.distillation import compared, distill, divergence
from fedfew.models.served import ServedModel


@pytest.fixture(scope="module")
def data() -> fedfew.Federation:
    return fedfew.data.load("digits", clients=3, sample=240, partition="dirichlet:1")


def trained(data: fedfew.Federation, **settings: object) -> fedfew.Run:
    common = {
        "rounds": 4,
        "lr": 0.1,
        "batch_size": 10,
        "serve": "mixture",
        "temperature": 5.0,
        "device": "cpu",
        "engine": "sequential",
    }
    return fedfew.train(data, "mlp", fedfew.FedFew(models=3), **(common | settings))


@pytest.fixture(scope="module")
def run(data: fedfew.Federation) -> fedfew.Run:
    return trained(data, label_prior="client")


def test_the_divergence_by_hand() -> None:
    teacher, student = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]])
    first = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    second = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergence(student, teacher).item() == pytest.approx((first + second) / 2, rel=1e-5)
    assert divergence(teacher, teacher).item() == pytest.approx(0.0, abs=1e-6)


def test_the_student_comes_closer_to_the_mixture(run: fedfew.Run, data: fedfew.Federation) -> None:
    results = [distill(run, client, data, epochs=30) for client in range(3)]
    for client, found in enumerate(results):
        assert found.divergence < found.divergence_before
        x = data.test.inputs(data.test.rows(client))
        assert compared(found.module, run.model_of(client), x) == (found.agreement, found.divergence)
    assert sum(r.agreement for r in results) > sum(r.agreement_before for r in results)


def test_it_begins_as_the_model_of_the_largest_weight(run: fedfew.Run, data: fedfew.Federation) -> None:
    teacher = run.model_of(1)
    assert isinstance(teacher, ServedModel)
    best = teacher.models[int(teacher.log_weights.argmax())]
    x = data.test.inputs(data.test.rows(1))
    none = distill(run, 1, data, epochs=0)
    assert torch.equal(none.module(x), best(x) + teacher.log_prior)  # the client's prior is inside
    assert (none.agreement, none.divergence) == (none.agreement_before, none.divergence_before)
    before = [p.clone() for p in teacher.parameters()]
    distill(run, 1, data, epochs=2)
    assert all(torch.equal(a, b) for a, b in zip(before, run.model_of(1).parameters(), strict=True))


def test_settings_matter_and_seeds_repeat(run: fedfew.Run, data: fedfew.Federation) -> None:
    plain = distill(run, 0, data, epochs=2)
    assert distill(run, 0, data, epochs=2).divergence == plain.divergence
    for changed in ({"epochs": 3}, {"lr": 0.01}, {"batch_size": 40}, {"seed": 1}):
        assert distill(run, 0, data, **({"epochs": 2} | changed)).divergence != plain.divergence


def test_a_step_that_is_too_large_makes_no_student_worse_than_it_began(data: fedfew.Federation) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))

    settings = {"rounds": 2, "lr": 0.3, "batch_size": 10, "serve": "mixture", "temperature": 5.0, "device": "cpu"}
    run = fedfew.train(data, net, fedfew.FedFew(models=2), engine="sequential", **settings)
    for lr in (30.0, 1e30):  # the second one makes every student NaN in its first epoch, and is halved 5 times
        for client in range(3):
            found = distill(run, client, data, epochs=5, lr=lr)
            x = data.train.inputs(data.train.rows(client))
            began = distill(run, client, data, epochs=0)
            assert compared(found.module, run.model_of(client), x)[1] <= compared(began.module, run.model_of(client), x)[1]
    best = [distill(run, client, data, epochs=12, lr=30.0) for client in range(3)]
    assert sum(found.divergence < found.divergence_before for found in best) >= 2  # smaller steps help
    as_trained = [distill(run, client, data) for client in range(3)]
    assert all(found.divergence < 1 for found in as_trained)


def test_without_a_prior_the_student_is_a_plain_module(data: fedfew.Federation) -> None:
    module = distill(trained(data, rounds=1), 0, data, epochs=1).module
    assert isinstance(module, nn.Sequential)
    assert not module.training


def test_what_cannot_be_distilled_is_answered(run: fedfew.Run, data: fedfew.Federation) -> None:
    with pytest.raises(ValueError, match=r"client 0 uses one model, not a mixture: .* \(serve is 'best'\)"):
        distill(trained(data, rounds=1, serve="best"), 0, data)
    alone = fedfew.train(data, "linear", "fedavg", rounds=1, serve="mixture", device="cpu", engine="sequential")
    with pytest.raises(ValueError, match=r"uses one model, not a mixture: .* \(fedavg serves each client a single model\)"):
        distill(alone, 0, data)
    with pytest.raises(ValueError, match="the federation has 2 clients, but the run 3"):
        distill(run, 0, fedfew.data.load("digits", clients=2, sample=60))
    numbers = fedfew.data.load([([[0.0], [1.0], [2.0], [3.0]], [0.5, 1.5, 2.5, 3.5])] * 2, task="regression")
    regression = fedfew.train(
        numbers, "linear", fedfew.FedFew(models=2), rounds=1, serve="mixture", device="cpu", engine="sequential"
    )
    with pytest.raises(ValueError, match="for classes alone, and the task is regression"):
        distill(regression, 0, numbers)
