"""Regression and several labels per sample from start to end: engines, methods, settings, scores, selection."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import r2_score
from torch import Tensor, nn

import fedfew
from fedfew import export
from fedfew.engines import LocalTraining
from fedfew.evaluation.metrics import MultiLabelScores, RegressionScores, evaluate
from fedfew.federation import Federation
from fedfew.methods import METHODS
from tests.methods.small import assert_same, differ, tensors
from tests.methods.small import federation as classes
from tests.methods.small import train as short_run

SIZES = (9, 17, 12, 24)


@cache
def data(task: str, d: int = 2, seed: int = 0) -> Federation:
    """Clients in two groups, whose targets depend on the features in opposite ways."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[Any], list[Any]] = ([], [])
    slopes = rng.normal(size=(4, d))
    for client, size in enumerate(SIZES):
        for part, n in zip(parts, (size, 8), strict=True):
            x = rng.normal(size=(n, 4)).astype(np.float32)
            y = (x @ slopes) * (-1) ** client + 0.1 * rng.normal(size=(n, d))
            part.append((x, y if task == "regression" else (y > 0.2).astype(int)))
    return Federation.from_arrays(*parts, task=task)  # type: ignore[arg-type]  # one of the known ones


def net(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def own_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).abs().pow(1.5).mean(1)


def train(task: str, method: Any = None, **more: Any) -> fedfew.Run:
    return short_run(method or fedfew.FedFew(models=2), data(task), more.pop("model", net), **more)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("regression", {"mixup": 0.3, "optimizer": "adam"}),
    ("regression", {"serve": "mixture", "loss": "huber"}),
    ("regression", {"loss": own_loss}),
    ("multi-label", {"serve": "mixture", "mixup": 0.3}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "changes"), CASES)
def test_all_engines_end_alike(task: str, changes: dict[str, Any]) -> None:
    plain, *others = (train(task, engine=e, rounds=2, **changes) for e in ("sequential", "stacked", "threaded"))
    for other in others:
        assert_same(tensors(plain), tensors(other), 2e-4)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_or_says_that_it_is_for_classes(name: str) -> None:
    method = METHODS[name]()
    if method.needs_classes:
        with pytest.raises(ValueError, match=f"method: {name} works with classes alone, but the task is regression"):
            train("regression", method)
        return
    run = train("regression", method, rounds=1)
    assert np.isfinite(run.history.scores("served")).all()
    assert run.history.columns[1:3] == ["served_score", "served_loss"]


def test_losses_and_mixup_change_the_outcome() -> None:
    runs = [train("regression", rounds=1, **changes) for changes in ({}, {"loss": "mae"}, {"loss": "huber"}, {"mixup": 0.3})]
    assert all(differ(tensors(a), tensors(b)) for i, a in enumerate(runs) for b in runs[:i])


@pytest.mark.parametrize("serve", ["best", "mixture"])
def test_the_scores_are_those_of_the_models_served(serve: str) -> None:
    run, here = train("regression", serve=serve, rounds=2), data("regression")
    scores = evaluate(run, here)
    assert isinstance(scores, RegressionScores)
    for i in range(len(here)):
        x, y = here.test.of(i)
        with torch.no_grad():
            outputs = run.model_of(i)(x)
        assert run.history.last_scores("served")[i] == pytest.approx(r2_score(y, outputs), abs=1e-5)
        assert scores.r2[i] == pytest.approx(r2_score(y, outputs), abs=1e-5)
        assert run.history.last("served_loss")[i] == pytest.approx(float((outputs - y).square().mean()), rel=1e-5)
        assert scores.rmse[i] == pytest.approx(float((outputs - y).square().mean().sqrt()), rel=1e-5)


def test_a_mixture_for_a_regression_is_the_weighted_mean_of_outputs() -> None:
    run = train("regression", serve="mixture", temperature=0.3)
    x, _ = data("regression").test.of(0)
    served = run.served_to(0)
    with torch.no_grad():
        by_hand = sum(w * model(x) for w, model in zip(served.weights, run.models, strict=True))
        torch.testing.assert_close(run.model_of(0)(x), by_hand)


def test_several_labels_end_to_end() -> None:
    here = data("multi-label")
    run = fedfew.train(here, "linear", fedfew.FedFew(models=2), rounds=40, lr=0.5, batch_size=8, engine="stacked", device="cpu")
    scores = evaluate(run, here)
    assert isinstance(scores, MultiLabelScores)
    np.testing.assert_allclose(scores.micro_f1, run.history.last_scores("served"), atol=1e-6)
    assert scores.micro_f1.mean() > 0.8  # one model per group; a single model cannot do better than guess
    assert run.choice.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    with pytest.raises(ValueError, match="the task of the federation is regression, but the run was made for multi-label"):
        evaluate(run, data("regression"))


def test_regression_end_to_end_finds_the_groups_and_survives_a_folder(tmp_path: Path) -> None:
    here, events = data("regression", d=1), []
    run = fedfew.train(
        here,
        "linear",
        fedfew.FedFew(models=2),
        rounds=30,
        lr=0.1,
        batch_size=8,
        device="cpu",
        recipe="strong",
        server_average=0.5,
        folder=tmp_path / "run",
        on_round=lambda progress: events.extend(progress.events),
    )
    assert run.history.last_scores("served").mean() > 0.9
    assert run.choice.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert run.settings["label_prior"] == "none"
    assert events[:2] == [
        "task: 1 target (regression); loss mse, score R² (higher is better, 1 at most)",
        "recipe: strong without label_prior, which is for classes, but the task is regression",
    ]
    again = fedfew.load(tmp_path / "run")
    assert (again.task.score, again.criterion.name) == ("R²", "mse")
    np.testing.assert_array_equal(evaluate(again, here).r2, evaluate(run, here).r2)  # type: ignore[union-attr]


def test_the_task_of_a_federation_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that nobody is shown log it: an example of 18 runs printed it 18 times."""
    monkeypatch.setattr("fedfew.training.loop._tasks_told", set())
    caplog.set_level("WARNING", logger="fedfew")
    for here in (data("regression"), data("regression", seed=1), replace(data("regression"), name="other")):
        for method in ("fedavg", "local"):
            fedfew.train(here, "linear", method, rounds=1, device="cpu", smoothing_end=0.5)
    line = "task: 2 targets (regression); loss mse, score R² (higher is better, 1 at most)"
    assert caplog.messages.count(line) == 2  # of each name
    assert sum("smoothing_end is 0.5" in message for message in caplog.messages) == 6


def test_a_loss_of_ones_own_is_recorded_by_name_and_given_again_to_load(tmp_path: Path) -> None:
    run = train("regression", loss=own_loss, folder=tmp_path / "run")
    assert run.settings["loss"] == "tests.training.test_tasks:own_loss"
    assert run.criterion.function is own_loss
    x, y = data("regression").train.of(1)
    assert run.for_new_client(x.numpy(), y.numpy()).predict(x.numpy()).shape == (17, 2)  # the models are compared by it
    expected = run.for_new_client(x.numpy(), y.numpy()).predict(x.numpy())
    export.write(run, tmp_path / "models")
    for read, place in ((fedfew.load, tmp_path / "run"), (export.read, tmp_path / "models")):
        with pytest.raises(ValueError, match=r"give the function itself.*fedfew\.load\(folder, loss=…\)"):
            read(place, net).for_new_client(x.numpy(), y.numpy())
        again = read(place, net, loss=own_loss)
        np.testing.assert_allclose(again.for_new_client(x.numpy(), y.numpy()).predict(x.numpy()), expected, rtol=1e-6)
    assert fedfew.load(tmp_path / "run", net, own_loss).criterion.function is own_loss


def test_a_loss_is_not_given_again_where_its_name_is_known(tmp_path: Path) -> None:
    train("regression", loss="mae", folder=tmp_path / "run")
    with pytest.raises(ValueError, match=r"loss is given, but the models were trained with loss='mae'.*: leave it out"):
        fedfew.load(tmp_path / "run", net, own_loss)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (
            "regression",
            {"label_prior": "client"},
            "label_prior is 'client', which adds log frequencies of classes, but the task is",
        ),
        ("regression", {"label_smoothing": 0.1}, "label_smoothing is 0.1, which is part of cross-entropy, but the loss is mse"),
        ("multi-label", {"class_weights": "balanced"}, "class_weights is 'balanced', which is part of cross-entropy"),
        ("multi-label", {"loss": "mse"}, "loss is 'mse', which is for regression, but the task of these targets is multi-label"),
        ("regression", {"loss": "l2"}, "cross-entropy, mse, mae, huber, bce, next-token, module:function"),
    ],
)
def test_settings_without_a_meaning_are_refused(task: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(task, **changes)


def test_targets_of_a_wide_range_are_noted() -> None:
    events: list[str] = []
    x = np.ones((4, 4), np.float32)
    wide = Federation.from_arrays([(x, [0.5, 100.0, -100.0, 0.0])], [(x, [0.0, 1.0, 2.0, 3.0])])
    fedfew.train(
        wide, "linear", "fedavg", rounds=1, lr=1e-4, device="cpu", on_round=lambda progress: events.extend(progress.events)
    )
    assert "targets: their standard deviation is 70.7." in events[1]


def test_select_and_join_follow_the_task() -> None:
    good, bad = nn.Linear(1, 1), nn.Linear(1, 1)
    with torch.no_grad():
        for module, slope in ((good, 2.0), (bad, -2.0)):
            module.weight.fill_(slope)
            module.bias.zero_()
    x = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    y = 2.0 * x[:, 0] + 0.5
    assert fedfew.select([bad, good], x, y) == 1
    assert fedfew.select([bad, good], x, np.round(y), loss="mae") == 1
    training = LocalTraining(lr=0.2, batch_size=5, local_epochs=5)
    joined = fedfew.join([bad, good], x, y, training=training)
    assert joined.model == 1
    assert joined.before is not None
    assert joined.after is not None
    assert joined.before.loss == pytest.approx(0.25)  # all residuals are 0.5
    assert joined.after.loss < 0.01
    assert joined.after.score > joined.before.score


@pytest.mark.parametrize("serve", ["best", "mixture"])
def test_metrics_of_ones_own_are_recorded_per_client(serve: str, tmp_path: Path) -> None:
    def worst_error(outputs: Tensor, y: Tensor) -> float:
        return float((outputs - y).abs().max())

    here, metrics = data("regression"), {"worst_error": worst_error}
    run = train("regression", serve=serve, rounds=2, metrics=metrics, folder=tmp_path / "run")
    assert run.history.served_worst_error.shape == (2, 4)
    for i in range(4):
        x, y = here.test.of(i)
        with torch.no_grad():
            assert run.history.last("served_worst_error")[i] == pytest.approx(worst_error(run.model_of(i)(x), y), rel=1e-5)
    with pytest.raises(ValueError, match="metrics are none, but the run began with worst_error"):
        train("regression", serve=serve, rounds=3, folder=tmp_path / "run", resume=True)
    longer = train("regression", serve=serve, rounds=3, folder=tmp_path / "run", resume=True, metrics=metrics)
    assert longer.history.served_worst_error.shape == (3, 4)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda outputs, y: None, "must return a tensor of one value per sample, not NoneType"),
        (
            lambda outputs, y: torch.tensor(np.abs(outputs.numpy())),
            r"fails on outputs \[2, 2\] and targets \[2, 2\]: «Can't call",
        ),
        (lambda outputs, y: F.binary_cross_entropy(outputs, y[:1]), r"fails on .*: «Using a target size"),
        (lambda outputs, y: {}[3], r"fails on .*: «3»"),
        (lambda outputs, y: (outputs - y).detach().abs(), "has no gradient with respect to the outputs"),
        (lambda outputs, y: (outputs > y).float(), "has no gradient with respect to the outputs"),
    ],
)
def test_losses_that_cannot_be_trained_with_are_refused(loss: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"loss: .*{words}"):
        train("regression", loss=loss, rounds=1)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": len}, "metrics: 'loss' cannot be a column of the history"),
        ({"a b": len}, "metrics: 'a b' cannot be a column of the history"),
        (
            {"it": lambda outputs, y: "much"},
            "metrics: it must return one number, but fails for client 0: could not convert string to float",
        ),
    ],
)
def test_metrics_that_cannot_be_recorded_are_refused(metrics: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train("regression", metrics=metrics, rounds=1)
    with pytest.raises(TypeError, match=r"metrics must be functions by name, \{name: function\}, not list"):
        train("regression", metrics=[len], rounds=1)
    with pytest.raises(TypeError, match="on_round must be a function of the progress or a list of functions, not 3"):
        train("regression", on_round=3, rounds=1)
    with pytest.raises(TypeError, match="metrics: it must be a function of outputs and targets, not int"):
        train("regression", metrics={"it": 3}, rounds=1)


def test_predictions_of_several_labels_and_of_a_new_client(tmp_path: Path) -> None:
    here = data("multi-label")
    run = train("multi-label", serve="mixture", rounds=2)
    x, y = here.test.of(1)
    with torch.no_grad():
        outputs = run.model_of(1)(x)
    np.testing.assert_allclose(run.predict_proba(x, 1), outputs.sigmoid(), rtol=1e-5)
    np.testing.assert_array_equal(run.predict(x, 1), (outputs > 0).int())
    new = run.for_new_client(x, y)
    losses = torch.stack([nn.functional.binary_cross_entropy_with_logits(model(x), y) for model in run.models]).detach()
    weights = (-losses / run.settings["temperature"]).softmax(0)
    with torch.no_grad():
        by_hand = sum(w * model(x).sigmoid() for w, model in zip(weights, run.models, strict=True))
    np.testing.assert_allclose(new.predict_proba(x), by_hand, rtol=1e-4)
    with pytest.raises(ValueError, match="to choose a model for multi-label, y must be given"):
        run.for_new_client(x)
    several = train("regression", rounds=1)
    assert several.predict(x, 0).shape == (len(x), 2)
    with pytest.raises(ValueError, match="these models give numbers: use predict"):
        several.predict_proba(x, 0)
    one = train("regression", method="fedavg", rounds=1)
    np.testing.assert_array_equal(one.for_new_client(x).predict(x), one.predict(x))  # one model: no labels are needed


def focal(outputs: Tensor, y: Tensor) -> Tensor:
    """The focal loss with γ = 2."""
    losses = nn.functional.cross_entropy(outputs, y, reduction="none")
    return (1 - (-losses).exp()).square() * losses


def test_a_loss_of_ones_own_for_classes() -> None:
    one, other = (short_run(fedfew.FedFew(models=2), loss=focal, engine=engine, rounds=1) for engine in ("sequential", "stacked"))
    assert_same(tensors(one), tensors(other), 2e-4)
    scores = evaluate(one, classes())
    np.testing.assert_allclose(scores.loss, one.history.last("served_loss"), rtol=1e-4)
    assert differ(tensors(one), tensors(short_run(fedfew.FedFew(models=2), rounds=1)))


def test_outputs_that_are_not_finite_are_not_scored() -> None:
    run = train("regression", rounds=1)
    here = data("regression")
    broken = fedfew.Run(run.state, lambda: nn.Sequential(nn.Linear(4, 5), Infinite(), nn.Linear(5, 2)), run.method, run.criterion)
    with pytest.raises(ValueError, match=r"client 0: outputs must be finite.*Lower lr"):
        evaluate(broken, here)


class Infinite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0
