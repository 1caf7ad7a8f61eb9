"""Parts of a small stack side by side: the same numbers as of the whole stack, and no thread is left with other settings."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedfew
from fedfew.config import LocalTraining
from fedfew.engines import Sequential, Stacked
from fedfew.engines.stacked import side_by_side
from fedfew.engines.stacked.side_by_side import LEAST, SideBySide
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import tree_map
from fedfew.training.aggregation import Aggregation
from fedfew.util.cores import torch_threads
from tests.engines.small import assert_same, mlp, replicas
from tests.helpers import federation, linear

DATA = federation(sizes=(40, 13, 22, 7, 27, 22, 9))


@pytest.fixture
def three_cores(monkeypatch):
    monkeypatch.setattr(side_by_side, "LEAST", 1)
    with torch_threads(3):
        yield


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 10))
def test_parts_are_all_clients_in_their_order_and_about_as_large(sizes, cores, worth):
    parts = SideBySide(cores).parts(sizes, worth * LEAST)
    assert [i for part in parts for i in range(*part.indices(len(sizes)))] == list(range(len(sizes)))
    number = max(1, min(cores, worth, len(sizes)))
    assert 1 <= len(parts) <= number
    assert max(sum(sizes[part]) for part in parts) < sum(sizes) / number + max(sizes)


def test_what_is_not_worth_a_part_is_left_whole():
    assert SideBySide(4).parts([10] * 8, 2 * LEAST) == [slice(0, 4), slice(4, 8)]
    assert SideBySide(4).parts([10] * 8, 2 * LEAST - 1) == [slice(0, 8)]


class Elsewhere(nn.Sequential):
    """Not on the CPU, as on a GPU, but without values."""

    def __init__(self):
        super().__init__(linear())
        self.to("meta")

    def cpu(self):
        return linear()


def test_a_gpu_has_no_parts_and_the_cpu_beside_it_keeps_its_threads():
    with torch_threads(3):
        engine = Stacked(Elsewhere(), LocalTraining(lr=0.1, batch_size=8), 0)
        assert engine._side_by_side.parts([10] * 8, 8 * LEAST) == [slice(0, 8)]
        assert engine._side_by_side([torch.get_num_threads]) == [3]
        with engine.within_a_round():
            assert torch.get_num_threads() == 3


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_parts_train_as_one_replica_after_the_other_does(three_cores, schedule, monkeypatch):
    """Of clients of other sizes in each; step by step, recorded and replayed."""
    calls = []
    monkeypatch.setattr(SideBySide, "__call__", lambda self, of, f=SideBySide.__call__: calls.append(len(of)) or f(self, of))
    training = LocalTraining(lr=0.2, batch_size=8, schedule=schedule, rounds=4)
    results = []
    for engine in (Stacked(linear(), training, 3), Sequential(linear(), training, 3)):
        params, losses = replicas(linear, len(DATA)), []
        for number in range(1, 4):
            params, loss = engine.train(LocalEpochs(params, DATA.train, DATA.ids, number, cross_entropy, {}, 2))
            losses.append(loss)
        results.append((params, torch.stack(losses)))
    assert calls == [3] * 6
    assert_same(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("serve", ["chosen", "mixture"])
def test_parts_are_scored_as_the_whole(serve, monkeypatch):
    torch.manual_seed(1)
    served, adapted = (tree_map(torch.randn_like, replicas(mlp, n, 3)) for n in (1, len(DATA)))

    def scores():
        engine = Stacked(mlp(), LocalTraining(lr=0.1, batch_size=8), 0)
        arguments = ([served, adapted], DATA.train, DATA.test)
        for _ in range(2):
            found = engine.chosen_scores(*arguments) if serve == "chosen" else engine.weighed_scores(*arguments, 0.3)
        return engine, found

    (_, expected), before = scores(), torch.get_num_threads()
    monkeypatch.setattr(side_by_side, "LEAST", 1)
    with torch_threads(3):
        engine, found = scores()
    assert torch.get_num_threads() == before
    ((_, _, parts),) = engine._one_pass._divided.values()
    assert len(parts) == 3
    torch.testing.assert_close(_flat(found), _flat(expected))


def _flat(found):
    """All tensors, in their order."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [t for part in (found if isinstance(found, list | tuple) else vars(found).values()) for t in _flat(part)]


def test_a_run_is_the_same_and_others_keep_their_threads(monkeypatch):
    def run(seen=None):
        return fedfew.train(
            DATA,
            mlp,
            fedfew.FedFew(models=2),
            rounds=4,
            batch_size=8,
            lr=0.1,
            engine="stacked",
            device="cpu",
            on_round=lambda progress: seen is not None and seen.append(torch.get_num_threads()),
        )

    expected, seen, within = run(), [], []
    result = Aggregation.result
    monkeypatch.setattr(Aggregation, "result", lambda self: within.append(torch.get_num_threads()) or result(self))
    monkeypatch.setattr(side_by_side, "LEAST", 1)
    with torch_threads(3):
        found = run(seen)
        seen.append(torch.get_num_threads())
    assert seen == [3] * 5
    assert within == [3, 1, 1, 1]  # in the first round it is not known yet that the stack is small
    for name in ("served_loss", "adapted_loss", "losses", "choice"):
        torch.testing.assert_close(torch.tensor(found.history[name]), torch.tensor(expected.history[name]))


def test_threads_of_parts_neither_divide_operations_nor_differentiate():
    with torch_threads(2):
        here, there = SideBySide(2)([lambda: (threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled())] * 2)
        assert here == (threading.get_ident(), 1, True)
        assert there[0] != threading.get_ident()
        assert there[1:] == (1, False)
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("place", [0, 1])
def test_an_error_in_a_part_comes_out_when_all_parts_have_ended(place):
    ended = []

    def fails():
        raise KeyboardInterrupt

    def slow():
        time.sleep(0.05)
        ended.append(True)

    with torch_threads(2):
        with pytest.raises(KeyboardInterrupt):
            SideBySide(2)([fails, slow] if place == 0 else [slow, fails])
        assert torch.get_num_threads() == 2
    assert ended
