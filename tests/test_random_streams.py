"""Counted randomness: permutations, independent of company, and well mixed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfew import random_streams


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 2**31), st.integers(0, 5))
def test_order_is_a_permutation_of_each_clients_samples(sizes, models, seed, epoch):
    counts = torch.tensor(sizes)
    order = random_streams.order(seed, 3, torch.arange(len(sizes)), models, epoch, counts, int(counts.max()))
    assert order.shape == (len(sizes), models, max(sizes))
    for i, n in enumerate(sizes):
        for k in range(models):
            assert sorted(order[i, k, :n].tolist()) == list(range(n))


def test_order_depends_on_identity_alone_not_on_who_else_is_there():
    counts = torch.tensor([9, 20, 14])
    whole = random_streams.order(7, 2, torch.tensor([4, 8, 15]), 3, 0, counts, 20)
    alone = random_streams.order(7, 2, torch.tensor([15]), 3, 0, counts[2:], 14)
    assert torch.equal(whole[2, :, :14], alone[0])


def test_a_much_longer_company_changes_nothing():
    alone = random_streams.order(7, 2, torch.tensor([15]), 3, 0, torch.tensor([300]), 300)
    beside = random_streams.order(7, 2, torch.tensor([15, 4]), 3, 0, torch.tensor([300, 70_000]), 70_000)
    assert torch.equal(beside[0, :, :300], alone[0])


@pytest.mark.parametrize("longest", [6, 70_000])
def test_of_draws_that_differ_in_their_last_bits_alone_the_first_sample_comes_first(monkeypatch, longest):
    """However many samples others have, or their number would decide how many bits count."""
    monkeypatch.setattr(random_streams, "_splitmix_in_numpy", lambda x: (~x << np.uint64(8)) & np.uint64(2**20 - 1))
    keys, counts = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([4, 6])
    assert random_streams.permutations(keys, counts, longest)[..., :4].tolist() == [[[0, 1, 2, 3]]] * 2


def test_every_number_that_names_an_order_changes_it():
    def order(seed=0, round=0, client=0, epoch=0, model=0):
        return random_streams.order(seed, round, torch.tensor([client]), 2, epoch, torch.tensor([50]), 50)[0, model].tolist()

    orders = [order(), order(seed=1), order(round=1), order(client=1), order(epoch=1), order(model=1)]
    assert len({tuple(o) for o in orders}) == len(orders)


def test_orders_are_uniform():
    """Each of 24 permutations of four samples is about as frequent as the others (chi-square, 23 degrees of freedom)."""
    clients = torch.arange(24_000)
    order = random_streams.order(0, 0, clients, 1, 0, torch.full((24_000,), 4), 4)[:, 0]
    _, frequency = torch.unique(order, dim=0, return_counts=True)
    assert len(frequency) == 24
    assert ((frequency - 1000.0) ** 2 / 1000).sum() < 49.7  # 99.9 % quantile


def test_uniform_numbers_are_uniform():
    u = random_streams.uniform(torch.arange(100_000), 3)
    assert u.min() >= 0
    assert u.max() < 1
    histogram = torch.histc(u, 10, 0, 1)
    assert ((histogram - 10_000) ** 2 / 10_000).sum() < 27.9  # 9 degrees of freedom, 99.9 %


def test_participants():
    clients = torch.arange(40)
    drawn = [random_streams.participants(0, r, clients, 0.1).tolist() for r in range(200)]
    assert all(len(d) == 4 == len(set(d)) and d == sorted(d) for d in drawn)
    assert len({i for d in drawn for i in d}) == 40  # everybody's turn comes
    assert random_streams.participants(0, 1, clients, 1.0).tolist() == list(range(40))
    assert len(random_streams.participants(0, 1, clients, 1e-9)) == 1
    assert drawn != [random_streams.participants(1, r, clients, 0.1).tolist() for r in range(200)]


def test_orders_follow_from_the_hash_of_the_numbers_that_name_them():
    """Each number hashed by itself, in plain integers: numpy and PyTorch must find the same."""
    counts, longest = [5, 9], 9
    found = random_streams.order(11, 4, torch.tensor([3, 70]), 2, 1, torch.tensor(counts), longest)
    epoch = int(random_streams.count(random_streams.BATCH_ORDER, 11, 4, 1))
    for i, client in enumerate((3, 70)):
        for k in range(2):
            key = int(random_streams.count(epoch, client, k))
            drawn = [(int(random_streams.count(key, place)) % 2**64) >> 1 for place in range(counts[i])]
            expected = sorted(range(counts[i]), key=drawn.__getitem__) + list(range(counts[i], longest))
            assert found[i, k].tolist() == expected
