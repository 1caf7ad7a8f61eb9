"""FedFomo: who receives what, and what is held out. A float64 reference is in personal_references.py."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedfew.engines import LocalTraining, Sequential
from fedfew.local import Local
from fedfew.methods import FedFomo
from fedfew.methods.fedfomo import held_out
from fedfew.stack import tensor
from tests.methods.small import SIZES, assert_same, federation, mlp, tensors, train


def test_models_of_clients_not_seen_come_first_then_those_that_helped_most() -> None:
    method, everyone = FedFomo(models=2), torch.arange(6)
    seen = [method.chosen(train(method, rounds=rounds, participation=1.0).state.server, everyone)[0] for rounds in (1, 2, 3)]
    assert sorted(seen[0].tolist()) == [3, 4]  # 1 and 2 in the first round
    assert 5 in seen[1].tolist()
    run = train(method, rounds=4, participation=1.0)
    affinity = tensor(run.state.server, "affinity")
    assert bool((affinity.fill_diagonal_(0) < 100).all())  # all were seen: sums of weights, of which there is one per round
    assert torch.equal(method.chosen(run.state.server, everyone)[3], affinity[3].topk(2).indices)
    assert run.history.bytes_down[0] == 6 * 2 * 4 * (4 * 5 + 5 + 5 * 3 + 3)


def test_receiving_all_others_is_receiving_all() -> None:
    assert_same(tensors(train(FedFomo(models=5))), tensors(train(FedFomo())))


def test_no_model_is_better_than_the_own_where_all_are_the_same() -> None:
    affinity = tensor(train(FedFomo(), rounds=1, participation=1.0).state.server, "affinity")
    assert affinity.fill_diagonal_(0).abs().max() == 0


def test_samples_are_held_out_and_none_is_left_alone_in_a_batch() -> None:
    data = federation().train
    engine = Sequential(mlp(), LocalTraining(lr=0.1, batch_size=4, momentum=0.5), 0)
    kept, out = held_out(Local(engine, data, torch.arange(6), 1, torch.ones(6)), 0.2)
    assert kept.counts.tolist() == [6, 10, 4, 7, 12, 6]  # 16 − 3 = 13 would leave one alone
    assert (kept.counts + out.counts).tolist() == list(SIZES)
    assert torch.equal(out.samples.start, data.start + kept.counts)
    single = replace(data, count=torch.ones_like(data.count), longest=1)
    kept, out = held_out(Local(engine, single, torch.arange(6), 1, torch.ones(6)), 0.2)
    assert kept.counts.tolist() == out.counts.tolist() == [1] * 6
