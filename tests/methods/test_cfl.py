from __future__ import annotations

import itertools
from itertools import pairwise

import torch
from torch import Tensor

from fedfew.methods import CFL, FedAvg
from fedfew.methods.cfl import bipartition
from tests.methods.small import (
    FULL_BATCH,
    PLAIN,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    served,
    theta,
    train,
)


def largest_across(similarity: Tensor, half: Tensor) -> float:
    return float(similarity[half][:, ~half].max())


def test_the_bipartition_is_the_best_of_all() -> None:
    """All 2^6 − 1 ways to split seven, tried one by one."""
    for seed in range(20):
        v = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        similarity = torch.nn.functional.normalize(v, dim=1) @ torch.nn.functional.normalize(v, dim=1).T
        halves = [torch.tensor([False, *bits]) for bits in itertools.product((False, True), repeat=6) if any(bits)]
        best = min(largest_across(similarity, half) for half in halves)
        half, across = bipartition(similarity)
        assert 0 < int(half.sum()) < 7
        assert abs(largest_across(similarity, half) - best) < 1e-12
        assert abs(across - best) < 1e-12


def test_two_rounds_by_hand() -> None:
    """Every cluster splits as soon as it may: two after the first round, three after the second."""
    data = federation()
    everyone, n = clients_of(data), data.train.count.double()
    models, cluster = [theta(initial(linear))], torch.zeros(6, dtype=torch.int64)
    for _ in range(2):
        moved = torch.stack(
            [descend(models[int(cluster[i])], x, y) - models[int(cluster[i])] for i, (x, y) in enumerate(everyone)]
        )
        for k in range(len(models)):
            of = cluster == k
            models[k] = models[k] + torch.einsum("i,i...->...", n[of] / n[of].sum(), moved[of])
        for k in range(len(models)):
            members = (cluster == k).nonzero()[:, 0]
            if len(members) < 2 or len(models) == 3:
                continue
            v = moved[members].flatten(1)
            half, _ = bipartition((v @ v.T) / (v.norm(dim=1)[:, None] * v.norm(dim=1)))
            leave = half if n[members][half].sum() <= n[members][~half].sum() else ~half
            cluster[members[leave]] = len(models)
            models.append(models[k].clone())
    run = train(CFL(models=3, epsilon=1e9), data, **FULL_BATCH)
    assert torch.equal(run.state.server["cluster"], cluster)
    for k, model in enumerate(models):
        assert_close(theta(run.models[k].state_dict()), model)


FEW = PLAIN | {"participation": 0.5}  # a split waits for all members, so clusters part for several rounds before the next one


def test_an_average_over_rounds_follows_a_split() -> None:
    """What a client is served is the average of the models that its cluster, and the cluster that this came from, had."""
    method, rounds, weight = CFL(models=5, epsilon=1e9), 8, 0.8
    states = [train(method, rounds=r, **FEW).state.server for r in range(1, rounds + 1)]
    clusters = [state["cluster"].tolist() for state in states]
    parents = {old[i] for old, new in pairwise(clusters) for i in range(6) if new[i] != old[i]}
    assert parents - {0}  # a cluster beside the first was split
    run = train(method, rounds=rounds, server_average=weight, **FEW)
    for i, found in enumerate(served(run)):
        own = [{n: t[at[i]] for n, t in state["models"].items()} for state, at in zip(states, clusters, strict=True)]
        expected = own[0]
        for later in own[1:]:
            expected = {n: weight * t + (1 - weight) * later[n] for n, t in expected.items()}
        assert_same(found, expected, 1e-6)


def test_where_it_never_splits_it_is_fedavg() -> None:
    fedavg = train(FedAvg())
    for method in (CFL(epsilon=0.0), CFL(models=1, epsilon=1e9), CFL(gamma=0.999999, epsilon=1e9)):
        run = train(method)
        assert not run.state.server["cluster"].any()
        assert len(run.models) == 1
        assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 1e-6)


def test_groups_are_found() -> None:
    """Clients 0 and 3, 1 and 4, 2 and 5 see the same blobs."""
    data = federation((40,) * 6)
    settings = PLAIN | {"rounds": 25, "score_every": 25, "engine": "stacked", "batch_size": 40, "lr": 0.5}
    cluster = train(CFL(models=3, epsilon=0.6), data, **settings).state.server["cluster"].tolist()
    assert cluster[:3] == cluster[3:]
    assert len(set(cluster)) > 1


def test_updates_from_before_a_split_do_not_count_for_the_next_one() -> None:
    state = train(CFL(models=2, epsilon=1e9), rounds=1, **PLAIN).state.server
    assert state["cluster"].any()
    assert not state["samples"].any()


def test_a_cluster_with_a_member_that_has_not_answered_yet_is_not_split() -> None:
    run = train(CFL(epsilon=1e9), rounds=1, participation=0.5)
    assert not run.state.server["cluster"].any()
    assert train(CFL(epsilon=1e9), rounds=6, participation=0.5).state.server["cluster"].any()
