"""Early stopping, keeping the best round, and callbacks that stop a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedfew
from fedfew.config import TrainConfig
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.methods import Ditto, FedAvg, FedFew, LocalOnly, Method
from fedfew.report import describe, last_scores
from fedfew.report.page import record
from fedfew.report.page.document import of_run
from fedfew.training import checkpoint, validation
from fedfew.training.errors import Interrupted
from fedfew.training.history import History
from tests.helpers import call
from tests.methods.small import assert_same

OVERFITS: dict[str, Any] = {"rounds": 30, "lr": 0.5, "batch_size": 5, "engine": "stacked", "device": "cpu"}


@pytest.fixture(scope="module")
def noisy() -> fedfew.Federation:
    """Labels of which a third are wrong: the loss on other samples than those of training soon rises."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 20)).astype(np.float32)
    y = (x[:, 0] > 0) ^ (rng.random(150) < 0.33)
    return fedfew.data.load((x, y.astype(np.int64)), clients=3, partition="iid", val_share=0.3, scale="none")


def train(data: fedfew.Federation, method: Method | str = "fedavg", **settings: Any) -> fedfew.Run:
    return fedfew.train(data, "linear", method, **(OVERFITS | settings))


def history(losses: list[list[float]], accuracies: list[list[float]] | None = None) -> History:
    rows = accuracies or losses
    return History.from_arrays(
        {
            "round": np.arange(2, 2 * len(losses) + 2, 2),
            "validation_loss": np.array(losses),
            "validation_accuracy": np.array(rows),
        }
    )


def test_the_best_round_by_hand() -> None:
    means = history([[1.0, 3.0], [1.0, 1.0], [2.0, 0.0], [5.0, np.nan]], [[0.1, 0.1], [0.5, 0.1], [0.2, 0.6], [0.3, 0.3]])
    assert validation.best_row(means, TrainConfig(early_stopping=1)) == 1  # means 2, 1, 1, 5: the earlier of two
    assert validation.best_row(means, TrainConfig(early_stopping=1, best_by="accuracy")) == 2  # 0.1, 0.3, 0.4, 0.3
    assert validation.best_row(history([[np.nan], [np.nan]]), TrainConfig(early_stopping=1)) == 1
    assert validation.reason_to_stop(means, TrainConfig(early_stopping=3)) is None
    assert validation.reason_to_stop(means, TrainConfig()) is None
    assert validation.reason_to_stop(means, TrainConfig(early_stopping=2)) == (
        "stopped early after round 8: the validation loss was best in round 4, 2 scored rounds ago (early_stopping is 2)"
    )


def test_a_run_stops_when_no_round_was_better_for_long_and_stays_stopped(noisy: fedfew.Federation, tmp_path: Path) -> None:
    run = train(noisy, early_stopping=3, folder=tmp_path)
    losses = run.history.validation_loss.mean(1)
    assert run.round == int(losses.argmin()) + 1 + 3 < 30
    assert any(event.startswith(f"stopped early after round {run.round}") for event in run.state.events)
    again = train(noisy, early_stopping=3, folder=tmp_path, resume=True)
    assert again.round == run.round == fedfew.load(tmp_path).round
    assert train(noisy, early_stopping=0).round == 30


def test_patience_counts_scored_rounds(noisy: fedfew.Federation) -> None:
    run = train(noisy, early_stopping=2, score_every=3)
    best = int(run.history.round[run.history.validation_loss.mean(1).argmin()])
    assert run.round == best + 2 * 3


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedAvg(), FedFew(models=2), Ditto(), LocalOnly()], ids=lambda m: m.name)
@pytest.mark.parametrize("serve", ["best", "mixture"])
def test_the_best_round_is_kept(noisy: fedfew.Federation, method: Method, serve: str) -> None:
    kept = train(noisy, method, keep="best", rounds=8, serve=serve, server_average=0.5)
    best = int(kept.history.validation_loss.mean(1).argmin()) + 1
    assert kept.round_in_use == best < kept.round == 8
    short = train(noisy, method, keep="last", rounds=best, serve=serve, server_average=0.5)
    for client in range(3):
        assert_same(dict(kept.model_of(client).state_dict()), dict(short.model_of(client).state_dict()))
    assert last_scores(kept) == last_scores(short)
    assert (kept.choice == short.choice).all()


@pytest.mark.slow
def test_a_kept_run_is_saved_loaded_and_resumed(noisy: fedfew.Federation, tmp_path: Path) -> None:
    whole = train(noisy, Ditto(), keep="best", rounds=8)

    def interrupt(progress: fedfew.Progress) -> None:
        if progress.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        train(noisy, Ditto(), keep="best", rounds=8, folder=tmp_path / "a", on_round=interrupt)
    assert stopped.value.run.round_in_use <= 5
    train(noisy, Ditto(), keep="best", rounds=8, folder=tmp_path / "a", resume=True)
    whole.save(tmp_path / "b")
    for run in (fedfew.load(tmp_path / "a"), fedfew.load(tmp_path / "b")):
        assert (run.round, run.round_in_use) == (8, whole.round_in_use)
        assert_same(run.newest.server, whole.newest.server)
        assert_same(run.state.own, whole.state.own)
        assert describe(run)["round_in_use"] == whole.round_in_use
    with record.newest(tmp_path / "b") as stored:
        pages = [of_run(stored), of_run(record.InMemory(whole.state))]
    for page in pages:
        assert page["scores"]["served"]["mean"] == pytest.approx(last_scores(whole)["served"].mean, abs=1e-4)
        assert f"of round {whole.round_in_use}, the best on validation data" in page["words"]["served"]


def test_the_validation_scores_are_those_of_the_model_served(noisy: fedfew.Federation) -> None:
    run = train(noisy, FedFew(models=2), early_stopping=9, rounds=2)
    assert noisy.val is not None
    for client in range(3):
        x, y = noisy.val.of(client)
        logits = run.model_of(client)(x)
        assert run.history.validation_loss[-1][client] == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-5)
        assert run.history.validation_accuracy[-1][client] == pytest.approx((logits.argmax(1) == y).float().mean().item())
    assert "validation_loss" not in train(noisy, rounds=1).history.columns


@pytest.mark.slow
def test_what_is_compared_matters(noisy: fedfew.Federation) -> None:
    by_loss, by_accuracy = (train(noisy, keep="best", lr=0.05, best_by=by).round_in_use for by in ("loss", "accuracy"))
    assert by_loss != by_accuracy
    events: list[str] = []
    train(noisy, rounds=1, best_by="accuracy", on_round=lambda progress: events.extend(progress.events))
    assert "best_by is accuracy, but early_stopping is 0 and keep is last: it has no effect" in events


@pytest.mark.parametrize(
    ("settings", "named"), [({"early_stopping": 4}, "early_stopping is 4"), ({"keep": "best"}, "keep is 'best'")]
)
def test_without_validation_samples_a_sentence_names_the_setting(settings: dict[str, Any], named: str) -> None:
    data = fedfew.data.load("digits", clients=3, sample=60)
    with pytest.raises(ValueError, match=f"{named}, but the federation has no validation samples: give val_share=0.2"):
        train(data, **settings)


def test_on_a_network_the_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="early-stopping is for simulations"):
        DeploymentConfig.read({"early-stopping": 3})


# -- callbacks ---------------------------------------------------------------------------------------------------------------


def test_a_callback_stops_a_run_and_nothing_is_lost(noisy: fedfew.Federation, tmp_path: Path) -> None:
    seen: list[int] = []

    def stop(progress: fedfew.Progress) -> str | None:
        return "stop" if progress.round == 3 else "go on"

    run = train(noisy, rounds=6, folder=tmp_path, on_round=[lambda progress: seen.append(progress.round), stop])
    assert (run.round, seen) == (3, [1, 2, 3])
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["round-000003"]
    longer = train(noisy, rounds=6, folder=tmp_path, resume=True)
    assert_same(longer.state.server, train(noisy, rounds=6).state.server)


def test_other_answers_do_not_stop(noisy: fedfew.Federation) -> None:
    assert train(noisy, rounds=2, on_round=lambda progress: torch.ones(2)).round == 2
    assert train(noisy, rounds=2, on_round=lambda progress: True).round == 2


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_from_the_command_line() -> None:
    words = ["--clients", "3", "--sample", "120", "--partition", "iid", "--lr", "0.5", "--device", "cpu", "--engine", "stacked"]
    out = call("run", *words, "--method", "fedavg", "--val-share", "0.3", "--early-stopping", "3", "--keep", "best").stdout
    run = fedfew.load("runs/digits-fedavg-0")
    assert run.round_in_use == run.round - 3
    assert f"stopped early after round {run.round}" in out
    assert f"round {run.round_in_use} (the best) of {run.round}" in out.replace("\n", " ")
