"""Operations counted from a module against those counted by hand."""

from __future__ import annotations

import pytest

from fedfew.bench import flops
from fedfew.bench.workloads import find


def test_the_papers_cnn_by_hand() -> None:
    first = 28 * 28 * 32 * (5 * 5 * 3)  # multiply-adds: places × filters × window
    second = 10 * 10 * 64 * (5 * 5 * 32)
    linear = 1600 * 512 + 512 * 10
    by_hand = 3 * 2 * (first + second + linear)
    workload = find("cifar-cnn", "cpu", quick=True)
    counted = flops.training_flop(workload.module(), workload.draw())
    assert counted == by_hand
    assert counted / 1e6 == pytest.approx(46.96, abs=0.005)


def test_the_mlp_by_hand() -> None:
    workload = find("digits-mlp", "cpu")
    assert flops.forward_flop(workload.module(), workload.draw()) == 2 * (64 * 64 + 64 * 10)


def test_the_textcnn_by_hand() -> None:
    windows = sum((200 - width + 1) * 100 * width * 512 for width in (3, 4, 5))  # looking a word up costs no arithmetic
    workload = find("text-cnn", "cpu", quick=True)
    assert flops.forward_flop(workload.module(), workload.draw()) == 2 * (windows + 300 * 4)


def test_a_round_trains_every_replica_on_every_sample() -> None:
    workload = find("cifar-cnn", "cuda")
    assert flops.round_flop(workload, 2.0) == 2.0 * 44_900 * 3
    assert flops.round_flop(find("blazefl-cnn", "cuda"), 2.0) == 2.0 * 100 * 500 * 5
