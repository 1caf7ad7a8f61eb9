"""Learning rates over rounds, and class weights: by hand, in whole runs, resumed, and at sites on Flower."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedfew
from fedfew.config import LocalTraining, TrainConfig
from fedfew.methods import APFL, Ditto, FedAvg, FedFew, FedProx, FedRep
from fedfew.training.class_weights import balanced
from tests.helpers import federation, linear, same_run
from tests.methods import small

SETTINGS = {"rounds": 4, "batch_size": 8, "lr": 0.1, "engine": "sequential"}
RECIPE = {
    "optimizer": "adamw",
    "lr": 0.01,
    "schedule": "cosine",
    "warmup_rounds": 2,
    "clip_gradient": 1.0,
    "label_smoothing": 0.1,
    "class_weights": "balanced",
    "mixup": 0.3,
}


def rates(rounds=8, **settings):
    training = LocalTraining(lr=0.4, batch_size=1, rounds=rounds, **settings)
    return [training.lr_of(number) for number in range(1, rounds + 1)]


def test_learning_rates_by_hand():
    assert rates() == [0.4] * 8
    assert rates(schedule="step") == pytest.approx([0.4] * 4 + [0.04] * 2 + [0.004] * 2)
    assert rates(schedule="step", step_factor=0.5) == pytest.approx([0.4] * 4 + [0.2] * 2 + [0.1] * 2)
    assert rates(4, schedule="cosine") == pytest.approx([0.4, 0.2 + 0.1 * math.sqrt(2) * 1, 0.2, 0.2 - 0.1 * math.sqrt(2)])
    assert rates(warmup_rounds=4) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4])
    assert rates(6, schedule="cosine", warmup_rounds=2) == pytest.approx([0.2, 0.4, *rates(4, schedule="cosine")])
    assert rates(4, schedule="step", warmup_rounds=2) == pytest.approx([0.2, 0.4, 0.04, 0.004])


@pytest.mark.parametrize("engine", ["sequential", "threaded", "stacked"])
def test_a_run_takes_the_learning_rate_of_each_round(engine):
    """Full batches and one step per round: FedAvg is then gradient descent on the mean loss with the schedule's step."""
    data = small.federation()
    changes = {"rounds": 4, "local_epochs": 1, "schedule": "cosine", "warmup_rounds": 1, "engine": engine}
    run = small.train(FedAvg(), data, **(small.FULL_BATCH | changes))
    theta = small.theta(small.initial(small.linear))
    for share in (1.0, 1.0, 0.75, 0.25):  # of 0.5: one round of warm-up, then (1 + cos(π s / 3)) / 2 for s = 0, 1, 2
        slopes = [small.gradient(theta, x, y) for x, y in small.clients_of(data)]
        theta = theta - 0.5 * share * small.mean_by_samples(slopes, data)
    torch.testing.assert_close(small.theta(run.models[0].state_dict()), theta, rtol=1e-4, atol=1e-5)


def test_apfl_mixes_by_the_learning_rate_of_the_round():
    seen = []

    class Watched(APFL):
        def side_by_side(self, loss, params, context):
            seen.append(float(context["lr"]))
            return super().side_by_side(loss, params, context)

    small.train(Watched(mixing="round"), schedule="step", rounds=4, participation=1.0)
    steps = len(seen) // 4  # per round
    assert seen[::steps] == pytest.approx([0.2, 0.2, 0.02, 0.002])


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_stopped_run_with_the_recipe_ends_as_if_it_had_not_been(engine, tmp_path):
    def stop(progress):
        if progress.round == 2:
            raise RuntimeError("stopped")

    def run(**more):
        return fedfew.train(federation(), linear, FedFew(models=2), **(SETTINGS | RECIPE | {"engine": engine} | more))

    with pytest.raises(RuntimeError, match="stopped"):
        run(folder=tmp_path / "run", on_round=stop, checkpoint_every=1)
    events = []
    resumed = run(folder=tmp_path / "run", resume=True, on_round=lambda progress: events.extend(progress.events))
    same_run(resumed, run())
    assert events == []


def test_more_rounds_follow_the_schedule_of_the_new_total_and_a_line_says_so(tmp_path):
    def run(rounds, events, **more):
        return fedfew.train(
            federation(), linear, FedAvg(), **(SETTINGS | {"schedule": "cosine", "rounds": rounds} | more),
            on_round=lambda progress: events.extend(progress.events),
        )  # fmt: skip

    events = []
    run(2, [], folder=tmp_path / "run")
    longer = run(4, events, folder=tmp_path / "run", resume=True)
    assert events == [
        "rounds was 2 and is 4 now: the learning rate goes on by a cosine schedule over 4 rounds; "
        "that of the 2 rounds done was by one over 2"
    ]
    planned = run(4, [])
    assert not np.allclose(longer.history.losses[-1], planned.history.losses[-1])


@pytest.mark.slow
@pytest.mark.parametrize("method", [APFL(adaptive=False), Ditto(), FedFew(), FedProx(), FedRep()], ids=lambda method: method.name)
def test_methods_train_alike_with_the_recipe_on_every_engine_and_in_chunks(method):
    """APFL's α is fixed here: its gradient is 0 but for rounding at first, and Adam makes full steps of rounding errors."""
    changes = [{"engine": "sequential"}, {"engine": "stacked"}, {"engine": "stacked", "chunk": 2}]
    runs = [small.train(method, momentum=0.0, **(RECIPE | more)) for more in changes]
    for other in runs[1:]:
        small.assert_same(small.tensors(runs[0]), small.tensors(other), 1e-5)


@pytest.mark.parametrize("name", RECIPE)
def test_every_setting_changes_a_run(name):
    plain = fedfew.train(federation(), linear, FedAvg(), **SETTINGS)
    changed = fedfew.train(federation(), linear, FedAvg(), **(SETTINGS | {name: RECIPE[name]}))
    assert not np.allclose(plain.history.losses, changed.history.losses, atol=1e-6)


def test_balanced_weights_by_hand():
    """6 samples, 2 of 4 classes present: 6/(2·4), 6/(2·2); the mean over samples is 1."""
    labels = torch.tensor([0, 0, 0, 0, 2, 2])
    found = balanced(labels, 4)
    assert found.tolist() == [0.75, 1.0, 1.5, 1.0]
    assert float(found[labels].mean()) == 1.0


def test_settings_that_do_nothing_are_reported():
    events = []
    fedfew.train(
        federation(), linear, FedAvg(), **(SETTINGS | {"optimizer": "adam", "momentum": 0.9, "step_factor": 0.5}),
        on_round=lambda progress: events.extend(progress.events),
    )  # fmt: skip
    assert events == [
        "momentum is 0.9, but the optimizer is adam: it has no effect",
        "step_factor is 0.5, but the schedule is constant: it has no effect",
    ]
    assert TrainConfig(schedule="cosine", rounds=3, warmup_rounds=3).without_effect() == [
        "schedule is cosine, but all 3 rounds are warm-up (warmup_rounds is 3): it has no effect"
    ]
    assert TrainConfig(**RECIPE).without_effect() == []
    assert TrainConfig(lr=0.1, rounds=3, warmup_rounds=6).without_effect() == [
        "warmup_rounds is 6 of 3 rounds: the learning rate reaches 0.05 only"
    ]
    assert TrainConfig(server_lr=0.5, server_momentum=0.5, temperature=2.0, prior_strength=0.5).without_effect() == [
        "prior_strength is 0.5, but label_prior is none: it has no effect",
        "server_lr is 0.5, but server_optimizer is none: it has no effect",
        "server_momentum is 0.5, but server_optimizer is none: it has no effect",
        "temperature is 2, but serve is best: it has no effect",
    ]
    assert TrainConfig(label_prior="client", label_smoothing=0.1).without_effect() == [
        "label_smoothing is 0.1 with a label prior: it pulls every client's predictions to equal frequencies, against the prior, "
        "and accuracy may fall (docs/recipe.md#label-prior)"
    ]
    assert TrainConfig(label_smoothing=0.1).without_effect() == []
    used = {"server_optimizer": "momentum", "serve": "mixture", "label_prior": "client"}
    assert TrainConfig(server_lr=0.5, server_momentum=0.5, temperature=2.0, prior_strength=0.5, **used).without_effect() == []


def test_lines_that_nobody_is_shown_are_logged(caplog):
    fedfew.train(federation(), linear, FedAvg(), **(SETTINGS | {"temperature": 2.0}))
    assert [record.getMessage() for record in caplog.records] == ["temperature is 2, but serve is best: it has no effect"]
    caplog.clear()
    fedfew.train(federation(), linear, FedAvg(), **(SETTINGS | {"temperature": 2.0}), on_round=lambda progress: None)
    assert caplog.records == []
    with caplog.at_level("INFO", logger="fedfew"):
        fedfew.train(federation(), linear, FedAvg(), **(SETTINGS | {"engine": "auto"}))
    assert [(record.levelname, record.getMessage()[:8]) for record in caplog.records] == [("INFO", "engine: ")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be sgd, adam or adamw, not 'lion'"),
        ({"schedule": "linear"}, "schedule must be constant, cosine or step, not 'linear'"),
        ({"warmup_rounds": -1}, "warmup_rounds must be a whole number ≥ 0, not -1"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\), not 1.0"),
        ({"class_weights": "mine"}, "class_weights must be none or balanced, not 'mine'"),
        ({"mixup": -0.1}, "mixup must be a finite number ≥ 0, not -0.1"),
    ],
)
def test_values_that_are_not_allowed(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**changes)
