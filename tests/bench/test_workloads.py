"""Workloads: the same bytes everywhere, of the sizes they promise."""

from __future__ import annotations

import pytest
import torch

from fedfew.bench.workloads import QUICK, WORKLOADS, find


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_every_time(name: str) -> None:
    first, again = (find(name, "cpu", quick=True) for _ in range(2))
    a, b = first.draw(), again.draw()
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert a.x.shape[1:] == first.shape
    assert a.y.max() < first.classes
    state = again.module().state_dict()
    assert all(torch.equal(t, state[key]) for key, t in first.module().state_dict().items())


def test_the_papers_setting_has_unequal_clients() -> None:
    sizes = find("cifar-cnn", "cuda").sizes()
    assert len(sizes) == 20
    assert sum(sizes) == 44_900
    assert max(sizes) > 2 * min(sizes) > 0
    assert sizes == find("cifar-cnn", "cuda").sizes()


@pytest.mark.parametrize(("clients", "samples"), [(1, 1), (7, 13), (300, 1)])
def test_unequal_sizes_add_up_and_leave_nobody_without(clients: int, samples: int) -> None:
    sizes = find("cifar-cnn", "cpu", clients=clients, samples=samples).sizes()
    assert len(sizes) == clients
    assert sum(sizes) == clients * samples
    assert min(sizes) >= 1


def test_a_cpu_has_less_to_do_and_quick_less_still() -> None:
    large, small, quick = find("cifar-cnn", "cuda"), find("cifar-cnn", "cpu"), find("cifar-cnn", "cpu", quick=True)
    assert sum(large.sizes()) > sum(small.sizes()) > sum(quick.sizes())
    assert all(getattr(quick, size) <= most for size, most in QUICK.items())


def test_given_sizes_count_before_all_else() -> None:
    workload = find("digits-mlp", "cpu", quick=True, clients=30, models=5, samples=None)
    assert (workload.clients, workload.models, workload.samples) == (30, 5, QUICK["samples"])
    assert workload.describe()["samples"] == 30 * QUICK["samples"]


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'cifar-cnn'"):
        find("cifar-cn", "cpu")
    with pytest.raises(ValueError, match="clients must be ≥ 1, not 0"):
        find("digits-mlp", "cpu", clients=0)
