"""The history of a run, column by column."""

import pytest

from fedfew import FedFew
from tests.training.small import train


def test_what_a_run_holds():
    run = train(FedFew(models=2), rounds=5, score_every=2)
    history = run.history
    assert history.round.tolist() == [2, 4, 5]
    for name in ("served_accuracy", "served_loss", "adapted_accuracy", "adapted_loss", "choice", "alpha"):
        assert history[name].shape == (3, 4), name
    for name in ("losses", "w"):
        assert history[name].shape == (3, 4, 2), name
    for name in ("g", "seconds", "bytes_up", "bytes_down", "left_out"):
        assert history[name].shape == (3,), name
    parameters = 5 * 3 + 3
    assert history.bytes_down[-1] == 4 * 2 * parameters * 4  # 4 clients × 2 models × float32
    assert history.bytes_up[-1] == 4 * (2 * parameters + 2) * 4  # and two losses each
    assert len(run.models) == 2
    assert run.choice.shape == (4,)
    assert "round 5 of 5" in repr(run)


def test_the_history_explains_itself():
    history = train("fedavg").history
    assert len(history) == 3
    with pytest.raises(AttributeError, match="no column 'alpha'"):
        history.alpha  # noqa: B018  # the access is the test
    with pytest.raises(KeyError, match="no column 'alpha'"):
        history["alpha"]
    with pytest.raises(ValueError, match="do not fit"):
        history.append(round=9)
