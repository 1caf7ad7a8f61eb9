"""Which model each client uses: known after every round, scored or not, however the run ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfew
from fedfew.methods import IFCA, FedAvg, FedFew, Method
from fedfew.training.errors import Interrupted
from tests.methods.small import assert_same, clients_of, federation, mlp, tensors, train

METHODS = (FedFew(models=3), IFCA(models=3), FedAvg())


def stopped(method: Method, after: int, **settings: object) -> fedfew.Run:
    def on_round(progress: fedfew.Progress) -> None:
        if progress.round == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        train(method, rounds=9, on_round=on_round, **settings)
    return caught.value.run


def by_hand(run: fedfew.Run) -> list[int]:
    losses = [
        [torch.nn.functional.cross_entropy(model(x), y).item() for model in run.models] for x, y in clients_of(federation())
    ]
    return [row.index(min(row)) for row in losses]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 6), st.integers(2, 9), st.sampled_from(METHODS), st.integers(0, 3))
def test_a_run_that_is_stopped_knows_the_choices_of_its_last_round(after: int, every: int, method: Method, seed: int) -> None:
    run = stopped(method, after, score_every=every, seed=seed)
    assert run.round == after
    assert run.choice.tolist() == by_hand(run)
    assert run.model_of(2).state_dict().keys() == mlp().state_dict().keys()


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 3])
def test_its_checkpoint_does_too_and_resuming_is_the_same_as_never_having_stopped(after: int, tmp_path: Path) -> None:
    method = FedFew(models=3)
    run = stopped(method, after, score_every=2, folder=tmp_path)
    loaded = fedfew.load(tmp_path, mlp)
    assert loaded.choice.tolist() == run.choice.tolist() == by_hand(run)
    resumed = train(method, rounds=9, score_every=2, folder=tmp_path, resume=True)
    whole = train(method, rounds=9, score_every=2)
    assert_same(tensors(resumed), tensors(whole))
    assert resumed.choice.tolist() == whole.choice.tolist() == whole.history.last("choice").tolist()


def test_where_nobody_knows_it_is_said() -> None:
    run = stopped(FedFew(models=3), 3, score_every=2)
    run.state.choice = None  # as on a network, where sites choose when they are asked for scores
    assert not run.has_choice
    with pytest.raises(ValueError, match="after round 3 is not known: that round was not scored"):
        _ = run.choice
