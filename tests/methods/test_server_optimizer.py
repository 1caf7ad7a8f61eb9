"""Which models the server's optimiser moves: those that move by a mean of updates, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedfew.methods import CFL, METHODS, PACFL, CLoVE, FedAvg, FedDyn, FedGroup, FedMTL, FedSoft, FeSEM, Method, PerFedAvg, make
from fedfew.methods.base import Fresh
from fedfew.methods.cfl import bipartition
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    mlp,
    tensors,
    theta,
    train,
)

MOMENTUM: dict[str, Any] = {"server_optimizer": "momentum", "server_momentum": 0.9}


def events_of(method: Method, **settings: Any) -> list[str]:
    events: list[str] = []
    train(method, rounds=1, on_round=lambda progress: events.extend(progress.events), **settings)
    return events


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_gives_no_reason_has_models_for_the_optimiser(name: str) -> None:
    method = make(name)
    fresh = Fresh(lambda k: {n: t.detach() for n, t in mlp().state_dict().items()})
    assert method.not_optimised or set(method.init(fresh, 6)[0]) - method.notes


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (FedDyn(), "has a server's step of its own"),
        (FedMTL(), "keeps the mean of its clients' models on the server"),
        (FedSoft(), "makes its centres anew"),
        (FeSEM(), "makes its centres anew"),
        (PerFedAvg(), "has a training loss that jumps with server momentum"),
    ],
)
def test_a_state_that_is_no_sum_of_updates_is_left_alone_and_that_is_reported(method: Method, why: str) -> None:
    assert_same(tensors(train(method)), tensors(train(method, **MOMENTUM)))
    assert any(f"server_optimizer is momentum, but {method.name} {why}" in event for event in events_of(method, **MOMENTUM))


def test_per_fedavg_without_a_step_of_its_own_is_fedavg_with_momentum_too() -> None:
    fedavg, run = (train(m, **MOMENTUM) for m in (FedAvg(), PerFedAvg(alpha=0.0)))
    assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


def test_fedmtls_mean_stays_that_of_its_clients() -> None:
    """Under momentum it would run ahead of the clients, and pull them with it: faster in every round."""
    state = train(FedMTL(lam=1.0), rounds=10, **MOMENTUM).state
    for name, mean in state.server["mean"].items():
        assert_close(mean[0], state.own[name].mean(0))


@pytest.mark.parametrize("method", [CFL(models=1), PACFL(models=1), FedGroup(models=1)])
def test_one_cluster_with_momentum_is_fedavg_with_momentum(method: Method) -> None:
    fedavg, run = (train(m, participation=1.0, **MOMENTUM) for m in (FedAvg(), method))
    assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)
    assert not any("server_optimizer" in event for event in events_of(method, **MOMENTUM))


def test_clove_with_one_model_and_momentum_is_fedavg_a_round_later() -> None:
    fedavg, run = (train(m, **(FULL_BATCH | MOMENTUM | {"rounds": r})) for m, r in ((FedAvg(), 3), (CLoVE(models=1), 4)))
    assert_same(dict(run.models[0].state_dict()), dict(fedavg.models[0].state_dict()), 2e-6)


def test_every_cluster_has_its_own_moments() -> None:
    """PACFL's clusters are fixed after the first round: each is FedAvg with momentum among its clients."""
    data, rounds = federation((40,) * 6), 3
    run = train(PACFL(models=3), data, **(FULL_BATCH | MOMENTUM | {"rounds": rounds}))
    cluster, everyone = run.state.server["cluster"], clients_of(data)
    for k in range(3):
        w, m = theta(initial(linear)), torch.zeros(())
        for _ in range(rounds):
            m = 0.9 * m + torch.stack([descend(w, *everyone[i]) - w for i in (cluster == k).nonzero()[:, 0].tolist()]).mean(0)
            w = w + m
        assert_close(theta(run.models[k].state_dict()), w)


def test_both_halves_of_a_split_go_on_from_the_model_and_the_moments_of_the_whole() -> None:
    """Four rounds of CFL by hand, in which a cluster splits as soon as it may."""
    data, rounds = federation((7, 12, 5, 9, 16, 8, 6, 10, 11)), 4
    everyone, n = clients_of(data), data.train.count.double()
    w, m, cluster = [theta(initial(linear))], [torch.zeros(())], torch.zeros(9, dtype=torch.int64)
    splits = []
    for t in range(1, rounds + 1):
        moved = torch.stack([descend(w[k], x, y) - w[k] for k, (x, y) in zip(cluster.tolist(), everyone, strict=True)])
        for k in range(len(w)):
            of = cluster == k
            m[k] = 0.9 * m[k] + torch.einsum("i,i...->...", n[of] / n[of].sum(), moved[of])
            w[k] = w[k] + m[k]
        for k in range(len(w)):
            members = (cluster == k).nonzero()[:, 0]
            if len(members) < 2:
                continue
            v = moved[members].flatten(1)
            half, _ = bipartition((v @ v.T) / (v.norm(dim=1)[:, None] * v.norm(dim=1)))
            leave = half if n[members][half].sum() <= n[members][~half].sum() else ~half
            cluster[members[leave]] = len(w)
            w.append(w[k])
            m.append(m[k])
            splits.append((t, k))
    assert (3, 1) in splits  # by then the model and the moments of cluster 1 are not those of cluster 0
    run = train(CFL(models=9, epsilon=1e9), data, **(FULL_BATCH | MOMENTUM | {"rounds": rounds}))
    assert torch.equal(run.state.server["cluster"], cluster)
    for k, model in enumerate(w):
        assert_close(theta(run.models[k].state_dict()), model)
