"""A run in a pack is the run alone: every method, K, seed and setting beside others in one stack.

Most come out equal to the last bit. Where the stack's last batch is longer than a run's own, or a product is split into other
parts, a sum is rounded differently: the tolerance is that of one engine against another (tests/engines).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import fedfew
from fedfew import methods
from fedfew.engines import LocalTraining, Stacked
from fedfew.engines.packed import Pack, engine, requests
from fedfew.engines.packed.stack import SharedStack
from tests.engines.small import images
from tests.engines.stacked.test_captured import CapturedStack
from tests.engines.test_dropout import Attending
from tests.helpers import difference, federation, same_history

METHODS = {
    "fedavg": {},
    "fedfew": {"models": 3},
    "ifca": {"models": 2},
    "fedprox": {},
    "fedrep": {},
    "ditto": {},
    "local": {},
}
OTHERS = {"fedem": {"models": 2}, "perfedavg": {}, "knnper": {}, "fednova": {}}  # weigh samples, ask for gradients, features
# fp32: on a GPU the default is TF32, whose products have 11 significant bits. Which kernel is chosen, and whether it uses TF32,
# depends on the batch size, so a run in a pack would differ from the run alone by 1e-5. A CPU always computes in fp32.
SETTINGS = {"rounds": 3, "lr": 0.1, "batch_size": 8, "engine": "stacked", "precision": "fp32"}


@cache
def data(seed: int) -> fedfew.Federation:
    return federation((23, 40 + seed, 7, 31), seed=seed)


def task(method="fedavg", seed=0, model="linear", hyper=None, **changes):
    def run():
        return fedfew.train(data(seed), model, methods.make(method, **(hyper or {})), seed=seed, **(SETTINGS | changes))

    return run


def assert_as_alone(tasks) -> list[int]:
    """Every run in a pack is as alone. How many runs each was trained or scored with."""
    pack = Pack()
    for run, alone in zip(pack.run(tasks), [run() for run in tasks], strict=True):
        if isinstance(run, BaseException):
            raise run
        assert difference(run, alone) < 1e-6
        same_history(run, alone, 1e-5)
        assert torch.equal(run.choice, alone.choice)
    return [member.largest for member in pack.members]


@pytest.mark.parametrize("named", [METHODS, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["first", "others"])
def test_methods_of_all_kinds_in_one_pack(named):
    tasks = [task(name, seed % 3, hyper=hyper, rounds=2, model="mlp") for seed, (name, hyper) in enumerate(named.items())]
    assert max(assert_as_alone(tasks)) > 1


def test_runs_of_different_k_train_in_one_stack(monkeypatch):
    sizes = []
    monkeypatch.setattr(requests, "_trained", lambda part, original=requests._trained: sizes.append(len(part)) or original(part))
    tasks = [task("fedfew", seed, hyper={"models": seed + 1, "mu": 0.1 * (seed + 1)}) for seed in range(3)]
    assert assert_as_alone(tasks) == [3, 3, 3]
    assert sizes[:3] == [3, 3, 3]


@pytest.mark.slow
def test_equal_methods_are_trained_together_though_their_objectives_are_not_equal():
    assert assert_as_alone([task("fedprox", 0), task("fedprox", 1)]) == [2, 2]


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.drop, self.out = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.drop(self.norm(self.hidden(x)).relu()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"model": Dropping, "local_epochs": 2, "batch_size": 7},
        {"model": Attending, "batch_size": 7},
        {"mixup": 0.3, "label_prior": "client", "class_weights": "balanced"},
        {"momentum": 0.9, "schedule": "cosine", "participation": 0.5},
        {"serve": "mixture", "chunk": 3},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_is_drawn_or_weighed_is_each_runs_own(settings):
    assert assert_as_alone([task("fedfew", seed, hyper={"models": 2}, **settings) for seed in range(2)]) == [2, 2]


@pytest.mark.slow
def test_images_that_are_augmented_with_the_strong_recipe():
    def run(seed):
        model = lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))  # noqa: E731
        pictures = images((13, 22 + seed, 7, 27), shape=(3, 6, 6), seed=seed, dtype=np.uint8)
        return lambda: fedfew.train(pictures, model, "fedfew", recipe="strong", seed=seed, **SETTINGS)

    tasks = [run(seed) for seed in range(3)]
    assert "crop" in tasks[0]().settings["augment"]
    assert assert_as_alone(tasks) == [3, 3, 3]


@pytest.mark.slow
def test_different_numbers_of_rounds_and_learning_rates():
    """A run that is done leaves; those that step differently do not share an engine."""
    assert assert_as_alone([task(seed=0, rounds=2), task(seed=1, rounds=4), task(seed=1, lr=0.05)]) == [2, 2, 1]


@pytest.mark.slow
def test_what_does_not_fit_into_memory_together_is_done_in_parts(monkeypatch):
    tasks = [task("fedfew", seed, hyper={"models": 2}) for seed in range(3)]
    sizes = []
    monkeypatch.setattr(requests, "_trained", lambda part, original=requests._trained: sizes.append(len(part)) or original(part))
    monkeypatch.setattr(SharedStack, "replicas_that_fit", lambda self, samples: 16)  # 4 clients × 2 models each
    assert assert_as_alone(tasks) == [3, 3, 3]
    assert sizes[:2] == [2, 1]


def test_another_engine_and_frozen_parameters_are_not_packed():
    def frozen() -> nn.Module:
        module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
        module[0].requires_grad_(False)
        return module

    assert assert_as_alone([task(seed=0, engine="sequential"), task(seed=1, model=frozen)]) == [1, 1]


def test_steps_captured_as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(engine, "Stacked", CapturedStack)
    tasks = [task(name, seed, rounds=4) for name, seed in (("fedavg", 0), ("fedfew", 1), ("fedavg", 2))]
    assert assert_as_alone(tasks) == [3, 3, 3]


def test_gradients_are_computed_together_and_own_metrics_run_by_run(monkeypatch):
    joined = []
    gradients = requests.Gradients.together
    monkeypatch.setattr(requests.Gradients, "together", lambda self, all_: joined.append(len(all_)) or gradients(self, all_))
    metric = {"largest": lambda outputs, targets: float(outputs.max())}
    tasks = [task("perfedavg", seed, rounds=2, metrics=metric) for seed in range(2)]
    assert assert_as_alone(tasks) == [2, 2]
    assert joined[:2] == [2, 2]


def test_scores_that_do_not_fit_into_one_pass(monkeypatch):
    monkeypatch.setattr(Stacked, "clients_at_once", lambda self, params, splits: 0)
    assert assert_as_alone([task("fedfew", seed, rounds=2) for seed in range(2)]) == [2, 2]


def test_clients_of_joined_runs_that_keep_samples_apart():
    """Scores that do not fit into memory are made for some clients at a time. Errors there go unnoticed: runs go on alone."""
    train = replace(data(0).train, unseen=torch.tensor([5, 9, 1, 6]))
    last = (
        SharedStack(Stacked(nn.Linear(5, 3), LocalTraining(lr=0.1, batch_size=2), 0))
        .joined([(train, 1)] * 2)
        .take(torch.tensor([4, 7]))
    )
    assert last.count.tolist() == [23, 31]


def test_an_objective_whose_method_cannot_be_hashed_is_like_no_other():
    class Listed(list):
        def objective(self, loss, params, context): ...

    stack = SharedStack(Stacked(nn.Linear(2, 2), LocalTraining(lr=0.1, batch_size=2), 0))
    first, second = Listed().objective, Listed().objective
    assert (stack.same(first), stack.same(second)) == (first, second)
