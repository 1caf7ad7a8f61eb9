"""Lines about a round: models that have not specialised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedfew
from fedfew.methods import FedAvg, FedFew, Method
from fedfew.training.history import History
from fedfew.training.round_events import not_specialised

WHAT = "models have not specialised"


def opposed(signs: tuple[int, ...] = (1, -1, 1)) -> fedfew.Federation:
    """Clients whose target is the feature or its negative: one round of training fits any model to a client."""
    draw = np.random.default_rng(0)

    def part(sign: int) -> tuple[np.ndarray, np.ndarray]:
        x = draw.normal(size=(400, 1)).astype(np.float32)
        return x, (sign * x + 0.05 * draw.normal(size=x.shape)).astype(np.float32)

    return fedfew.Federation.from_arrays([part(s) for s in signs], [part(s) for s in signs], task="regression")


def trained(method: Method, data: fedfew.Federation | None = None, **settings: Any) -> fedfew.Run:
    given = {"rounds": 12, "lr": 0.1, "batch_size": 10, "engine": "sequential"} | settings
    return fedfew.train(opposed() if data is None else data, "mlp", method, **given)


def lines(run: fedfew.Run) -> list[str]:
    return [event for event in run.state.events if WHAT in event]


def test_models_that_do_not_specialise_though_clients_differ_are_named_once() -> None:
    run = trained(FedFew(models=2))
    (line,) = lines(run)
    assert run.scores("served").min() < 0
    assert line.startswith(f"round 10: {WHAT}: clients weigh all 2 models nearly alike")
    assert line.endswith("If clients form groups, set loss_at='received', a smaller mu (it is 0.2) or a smaller lr")
    assert len(lines(fedfew.train(opposed(), "mlp", FedFew(models=2), rounds=12, score_every=12, lr=0.1, batch_size=10))) == 1


@pytest.mark.parametrize(
    ("method", "signs"),
    [
        (FedFew(models=2, loss_at="received"), (1, -1, 1)),  # they have specialised
        (FedFew(models=2), (1, 1, 1)),  # clients are alike, and weights rightly uniform
        (FedFew(models=1), (1, -1, 1)),
        (FedAvg(), (1, -1, 1)),
    ],
)
def test_there_is_no_line_where_models_fit_or_there_is_one(method: Method, signs: tuple[int, ...]) -> None:
    run = trained(method, opposed(signs))
    assert not lines(run)
    if signs == (1, 1, 1):
        assert run.history.last("w").max() < 0.51


def test_a_private_run_has_no_such_line() -> None:
    pytest.importorskip("dp_accounting")
    run = trained(FedFew(models=2), dp_noise=1e-3, dp_clip=100.0)
    assert run.history.last("w").max() < 0.6
    assert not lines(run)


def history(w: list[list[float]], gain: list[float]) -> History:
    served = np.ones(len(gain))
    return History({"w": [np.array(w)], "served_loss": [served], "adapted_loss": [served - np.array(gain)]})


UNIFORM = [[0.5, 0.5], [0.55, 0.45], [np.nan, np.nan]]


@pytest.mark.parametrize(
    ("method", "w", "gain", "round", "said"),
    [
        (FedFew(models=2), UNIFORM, [0.3, 0.3, np.nan], 10, True),
        (FedFew(models=2), UNIFORM, [0.3, 0.3, np.nan], 9, False),
        (FedFew(models=2), UNIFORM, [0.1, 0.1, np.nan], 10, False),  # not more than mu
        (FedFew(models=2), [[0.9, 0.1], [0.55, 0.45], [0.5, 0.5]], [0.3, 0.3, 0.3], 10, False),
        (FedFew(models=2), [[0.9, 0.1], [0.55, 0.45], [0.5, 0.5]], [np.nan, 0.3, 0.3], 10, True),
        (FedFew(models=2), UNIFORM, [np.nan] * 3, 10, False),  # no site shares its scores
        (FedFew.as_published(models=2, mu=0.1), UNIFORM, [0.25, 0.25, np.nan], 10, False),  # mu times 3 clients
        (FedFew.as_published(models=2, mu=0.08), UNIFORM, [0.25, 0.25, np.nan], 10, True),
    ],
)
def test_weights_are_nearly_uniform_and_local_training_gains_more_than_mu(
    method: FedFew, w: list[list[float]], gain: list[float], round: int, said: bool
) -> None:
    found = not_specialised(history(w, gain), method, round, [])
    assert len(found) == said
    assert not not_specialised(history(w, gain), method, round, [f"round 4: {WHAT}: …"])


def test_where_losses_are_reported_at_the_models_received_mu_alone_is_named() -> None:
    (line,) = not_specialised(history(UNIFORM, [0.4, 0.4, 0.4]), FedFew(models=2, loss_at="received"), 20, [])
    assert "client's test loss by 0.4 on average. If clients form groups, set a smaller mu (it is 0.2)" in line
    assert "received" not in line
