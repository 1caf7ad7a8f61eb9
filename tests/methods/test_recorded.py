"""Settings of methods as runs recorded them."""

from __future__ import annotations

import fedfew
from fedfew import methods
from fedfew.methods import METHODS, FedFew
from fedfew.training import checkpoint
from tests.methods.small import assert_same, mlp, tensors, train


def test_a_recorded_method_is_the_same_method():
    for cls in METHODS.values():
        assert methods.make(**methods.recorded(cls().settings())) == cls()


def test_a_hyperparameter_that_a_run_did_not_know_has_its_default(tmp_path):
    method = FedFew(models=2, mu=0.05)
    whole = train(method, rounds=4)
    run = train(method, rounds=2)
    del run.state.settings["method"]["scale_free"]
    checkpoint.write(tmp_path, run.state)
    assert fedfew.load(tmp_path, mlp).method == method
    resumed = train(method, rounds=4, folder=tmp_path, resume=True)
    assert_same(tensors(whole), tensors(resumed))
