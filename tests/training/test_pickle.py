"""Runs that are pickled: what comes back predicts the same."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedfew
from tests.helpers import federation, linear, same_run

SHORT = {"rounds": 2, "engine": "stacked", "lr": 0.3, "batch_size": 8}


def frozen_body() -> nn.Module:
    body = nn.Linear(5, 4)
    return nn.Sequential(body.requires_grad_(False), nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "method", "settings"),
    [
        ("mlp", fedfew.FedFew(models=2), {"label_prior": "client", "serve": "mixture", "server_average": 0.5}),
        (lambda: linear(), "ditto", {}),
        (frozen_body, "fedavg", {}),
        (lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), "fedavg", {"batch_norm": "local"}),
    ],
    ids=["named", "lambda", "frozen", "local-batch-norm"],
)
def test_a_pickled_run_predicts_the_same(model, method, settings) -> None:
    data = federation()
    run = fedfew.train(data, model, method, **SHORT, **settings)
    back = pickle.loads(pickle.dumps(run))
    same_run(run, back)
    x, _ = data.test.of(2)
    np.testing.assert_array_equal(back.predict_proba(x, client=2), run.predict_proba(x, client=2))
    assert [type(m) for m in back.models] == [type(m) for m in run.models]
    same_run(run, copy.deepcopy(run))


def test_a_run_whose_own_module_was_not_given_still_asks_for_it(tmp_path: Path) -> None:
    fedfew.train(federation(), linear, "fedavg", **SHORT).save(tmp_path / "r")
    back = pickle.loads(pickle.dumps(fedfew.load(tmp_path / "r")))
    assert back.round == 2
    with pytest.raises(ValueError, match="which is not one of fedfew's own"):
        back.model_of(0)
