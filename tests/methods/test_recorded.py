"""Settings of methods that earlier versions recorded."""

from __future__ import annotations

from dataclasses import fields

import fedfew
from fedfew import methods
from fedfew.methods import METHODS, FedFew
from fedfew.training import checkpoint
from tests.methods.small import assert_same, mlp, tensors, train


def test_a_recorded_method_is_the_same_method():
    for cls in METHODS.values():
        assert methods.make(**methods.recorded(cls().settings())) == cls()


def test_fedfew_before_it_was_scale_free_was_not():
    before = FedFew(models=2, mu=0.05, scale_free=False)
    old = {name: value for name, value in before.settings().items() if name != "scale_free"}
    assert methods.make(**methods.recorded(old)) == before
    assert {f.name for f in fields(FedFew)} >= set(FedFew.earlier)


def test_a_run_of_before_goes_on_as_it_began(tmp_path, monkeypatch):
    before = FedFew(models=2, mu=0.05, scale_free=False)
    whole = train(before, rounds=4)
    run = train(before, rounds=2)
    old = {name: value for name, value in run.state.settings["method"].items() if name != "scale_free"}
    run.state.settings["method"] = old
    checkpoint.write(tmp_path, run.state)
    assert fedfew.load(tmp_path, mlp).method == before
    resumed = train(before, rounds=4, folder=tmp_path, resume=True)
    assert_same(tensors(whole), tensors(resumed))
