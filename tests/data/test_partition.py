"""Partitions: every sample once, the same for the same seed, and an end for every request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew.data import partition

Deal = Callable[[np.ndarray, int, np.random.Generator], list[np.ndarray]]

DEALS: dict[str, Deal] = {
    "iid": lambda y, m, rng: partition.iid(len(y), m, rng),
    "dirichlet": lambda y, m, rng: partition.dirichlet(y, m, 0.5, rng),
    "dirichlet-published": lambda y, m, rng: partition.dirichlet_published(y, m, 0.5, rng, at_least=2),
    "pathological": lambda y, m, rng: partition.pathological(y, m, min(3, len(np.unique(y))), rng),
    "quantity": lambda y, m, rng: partition.quantity(len(y), m, 0.7, rng),
    "by": lambda y, m, rng: partition.by_value(y, m, rng),
}


@pytest.mark.parametrize("name", DEALS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 8), classes=st.integers(2, 9), data=st.data())
def test_every_sample_once_and_again_the_same(name: str, seed: int, clients: int, classes: int, data: st.DataObject) -> None:
    each = data.draw(st.lists(st.integers(9, 40), min_size=classes, max_size=classes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))
    try:
        parts = DEALS[name](labels, clients, np.random.default_rng(seed))
    except ValueError:  # a request that cannot be met is refused, see below
        return
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert min(map(len, parts)) >= 1
    again = DEALS[name](labels, clients, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", [n for n in DEALS if n != "by"])
def test_another_seed_deals_otherwise(name: str) -> None:
    labels = np.repeat(np.arange(10), 60)
    one, two = (DEALS[name](labels, 5, np.random.default_rng(seed)) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 12),
    alpha=st.floats(0.05, 5),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
)
def test_published_draw_gives_a_full_client_nothing(seed: int, clients: int, alpha: float, sizes: list[int]) -> None:
    counts = partition._published_counts(sizes, clients, alpha, np.random.default_rng(seed))
    if counts is None:
        return
    assert (counts >= 0).all()
    assert counts.sum(axis=1).tolist() == sizes
    before = counts.cumsum(axis=0) - counts
    assert not counts[before >= sum(sizes) / clients].any()


def test_published_dirichlet_leaves_nobody_below_forty() -> None:
    labels = np.repeat(np.arange(10), 600)
    parts = partition.dirichlet_published(labels, 20, 0.1, np.random.default_rng(0))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 40
    assert max(sizes) < 300 + 600  # N/M, and at most one class on top


def test_published_dirichlet_asks_for_half_the_mean_where_that_is_less_than_forty() -> None:
    labels = np.repeat(np.arange(5), 40)  # 200 samples, 10 clients: 20 on average
    sizes = [[len(part) for part in partition.dirichlet_published(labels, 10, 0.3, np.random.default_rng(s))] for s in range(20)]
    assert min(min(drawn) for drawn in sizes) == 10


def test_smaller_alpha_gives_fewer_classes() -> None:
    labels = np.repeat(np.arange(10), 600)

    def held(alpha: float) -> float:
        parts = partition.dirichlet(labels, 10, alpha, np.random.default_rng(0))
        return float(np.mean([(np.bincount(labels[part], minlength=10) > 6).sum() for part in parts]))

    assert held(0.1) < held(1.0) < held(100.0) == 10


@pytest.mark.parametrize(("clients", "each", "classes"), [(20, 2, 10), (10, 10, 100), (10, 20, 200), (7, 3, 5), (5, 1, 5)])
def test_pathological_clients_hold_exactly_so_many_classes(clients: int, each: int, classes: int) -> None:
    labels = np.repeat(np.arange(classes), 30)
    parts = partition.pathological(labels, clients, each, np.random.default_rng(0))
    assert [len(np.unique(labels[part])) for part in parts] == [each] * clients
    holders = np.array([[label in labels[part] for part in parts] for label in range(classes)]).sum(axis=1)
    assert holders.max() - holders.min() <= 1


def test_quantity_skew_skews_amounts_only() -> None:
    labels = np.repeat(np.arange(4), 5000)
    parts = partition.quantity(len(labels), 6, 0.5, np.random.default_rng(1))
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 4 * sizes.min()
    shares = np.bincount(labels[parts[sizes.argmax()]], minlength=4) / sizes.max()
    assert np.abs(shares - 0.25).max() < 0.02


def test_values_stay_together_and_amounts_are_even() -> None:
    rng = np.random.default_rng(0)
    writers = rng.permutation(np.repeat(np.arange(100), rng.integers(20, 60, 100)))
    parts = partition.by_value(writers, 8, np.random.default_rng(0))
    owners = [set(writers[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == 100
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 60
    alone = partition.by_value(writers, None, np.random.default_rng(0))
    assert [set(writers[part].tolist()) for part in alone] == [{w} for w in range(100)]


@pytest.mark.parametrize(
    ("deal", "words"),
    [
        (lambda y, rng: partition.dirichlet(y, 40, 0.5, rng, at_least=4), "100 samples are too few for 40 clients"),
        (
            lambda y, rng: partition.dirichlet(y, 20, 1e-4, rng, at_least=3),
            "dirichlet:0.0002.*take fewer clients",
        ),
        pytest.param(
            lambda y, rng: partition.dirichlet_published(y, 20, 1e-4, rng, at_least=5), "lower at_least", marks=pytest.mark.slow
        ),
        (lambda y, rng: partition.dirichlet_published(y, 3, 0.1, rng, 40), "too few for 3 clients with at least 40"),
        (lambda y, rng: partition.quantity(len(y), 30, 0.01, rng), "raise beta"),
        (lambda y, rng: partition.pathological(y, 3, 1, rng), "cannot hold all 5 classes: take at least 5 clients or 2 classes"),
        (lambda y, rng: partition.pathological(y, 3, 6, rng), "between 1 and 5"),
        (lambda y, rng: partition.pathological(y, 200, 1, rng), "class 0 has 20 samples, too few for the 40 clients"),
        (lambda y, rng: partition.iid(3, 4, rng), "3 samples are too few for 4 clients"),
        (lambda y, rng: partition.iid(3, 0, rng), "clients must be ≥ 1"),
        (lambda y, rng: partition.by_value(y, 6, rng), "5 different values, too few for 6 clients"),
        (lambda y, rng: partition.dirichlet(y, 2, 0.0, rng), "alpha must be a finite number > 0"),
        (lambda y, rng: partition.dirichlet(y, 2, float("nan"), rng), "alpha must be a finite number > 0"),
        (lambda y, rng: partition.quantity(5, 2, float("inf"), rng), "beta must be a finite number > 0"),
    ],
)
def test_what_cannot_be_is_refused(deal: Callable[..., object], words: str) -> None:
    """Rather than drawn again and again: that would never end."""
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        deal(np.repeat(np.arange(5), 20), np.random.default_rng(0))
