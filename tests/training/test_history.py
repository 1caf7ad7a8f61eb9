"""The history of a run, column by column."""

import sys

import pytest

import fedfew
from fedfew import FedFew
from fedfew.training.history import History
from tests.helpers import federation
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
    assert repr(history).startswith("<History of 3 scored rounds: round, ")
    with pytest.raises(AttributeError, match="no column 'alpha'"):
        history.alpha  # noqa: B018  # the access is the test
    with pytest.raises(KeyError, match="no column 'alpha'"):
        history["alpha"]
    with pytest.raises(KeyError, match="no column 'alpha'; it has round, served_accuracy"):
        history.last("alpha")
    with pytest.raises(ValueError, match="do not fit"):
        history.append(round=9)


def test_as_a_data_frame_with_one_row_per_round_and_client():
    run = train(FedFew(models=2), rounds=3)
    frame = run.history.to_pandas()
    assert frame["round"].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert frame.client.tolist() == [0, 1, 2, 3] * 3
    assert frame.served_accuracy.tolist() == run.history.served_accuracy.reshape(-1).tolist()
    row = frame[(frame["round"] == 2) & (frame.client == 3)].iloc[0]
    assert (row.w_0, row.w_1) == tuple(run.history.w[1, 3])
    assert row.g == run.history.g[1]
    assert len(History().to_pandas()) == 0


def test_the_data_frame_has_the_names_of_the_clients():
    data = federation()
    named = fedfew.Federation.from_arrays(
        [data.train.of(i) for i in range(4)], [data.test.of(i) for i in range(4)], client_names=["a", "b", "c", "d"]
    )
    frame = train("fedavg", data=named).history.to_pandas()
    assert frame.groupby("client").served_accuracy.count().to_dict() == {"a": 3, "b": 3, "c": 3, "d": 3}


def test_without_pandas_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="needs pandas, which is not installed: pip install pandas"):
        train("fedavg", rounds=1).history.to_pandas()
