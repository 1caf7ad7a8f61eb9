from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from fedfew.methods import FedAMP, LocalOnly
from fedfew.stack import named_leaves, take
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    assert_same,
    clients_of,
    descend,
    differ,
    federation,
    initial,
    linear,
    normalised,
    served,
    theta,
    train,
)

THREE = {"a": torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), "b": torch.tensor([0.0, 4.0, 0.0])}  # squared: 25, 1, 26
EVERYONE = torch.arange(3)


def test_attention_by_hand() -> None:
    """ξ_ij = α/σ·exp(−‖w_i − w_j‖²/σ), and what is left for the client itself."""
    xi = FedAMP(alpha=2.0, sigma=10.0, unit="one").attention(THREE, EVERYONE)
    near, mid, far = (0.2 * math.exp(-d / 10) for d in (1, 25, 26))
    expected = [[1 - mid - near, mid, near], [mid, 1 - mid - far, far], [near, far, 1 - near - far]]
    assert_close(xi, torch.tensor(expected))


def test_mean_squared_distance_as_unit() -> None:
    scaled = {name: 7 * t for name, t in THREE.items()}
    by_unit = FedAMP(alpha=0.2, sigma=1.0).attention(scaled, EVERYONE)
    mean = (25 + 1 + 26) / 3
    assert_close(by_unit, FedAMP(alpha=0.2 * mean, sigma=mean, unit="one").attention(THREE, EVERYONE))


def test_a_step_too_long_is_shortened() -> None:
    xi = FedAMP(alpha=1e4).attention(THREE, EVERYONE)
    assert_close(xi.sum(1), torch.ones(3))
    assert_close(xi.diagonal(), torch.zeros(3))
    assert (xi >= 0).all()


@pytest.mark.parametrize("unit", ["mean", "one"])
def test_reach_of_attention(unit: str) -> None:
    nobody = FedAMP(sigma=1e-3, unit=unit).dispatch(THREE, EVERYONE)
    assert_close(nobody["a"][:, 0], THREE["a"])
    everybody = FedAMP(alpha=1e9, sigma=1e9, unit=unit).dispatch(THREE, EVERYONE)
    others = (THREE["a"].sum(0) - THREE["a"]) / 2
    assert_close(everybody["a"][:, 0], others)


def test_clients_that_are_alike_stay_alike() -> None:
    same = {"a": torch.ones(3, 2)}
    assert_close(FedAMP().dispatch(same, EVERYONE)["a"][:, 0], same["a"])
    alone = {"a": torch.ones(1, 2)}
    assert_close(FedAMP().dispatch(alone, torch.tensor([0]))["a"][:, 0], alone["a"])


@pytest.mark.parametrize("start", ["cloud", "own"])
def test_two_rounds_by_hand(start: Literal["cloud", "own"]) -> None:
    data = federation()
    alpha, sigma, lam = 0.1, 0.5, 0.07
    w = [theta(initial(linear))] * len(data)
    for _ in range(2):
        xi = torch.tensor([[alpha / sigma * math.exp(-float((a - b).square().sum()) / sigma) for b in w] for a in w]).double()
        xi.fill_diagonal_(0)
        xi += torch.diag(1 - xi.sum(1))
        u = torch.einsum("ij,j...->i...", xi, torch.stack(w))
        begin = u if start == "cloud" else w
        w = [descend(b_i, x, y, pull=lam / alpha, to=u_i) for b_i, u_i, (x, y) in zip(begin, u, clients_of(data), strict=True)]
    run = train(FedAMP(lam=lam, alpha=alpha, sigma=sigma, unit="one", start=start), data, **FULL_BATCH)
    for client, w_i in enumerate(w):
        assert_close(theta(run.model_of(client).state_dict()), w_i)


def test_server_keeps_what_every_client_sent_last() -> None:
    run = train(FedAMP(), rounds=4, participation=0.5, chunk=2)
    assert_same(dict(named_leaves(run.state.server)), dict(named_leaves(run.state.own)))
    assert differ(dict(named_leaves(take(run.state.server, 0))), dict(named_leaves(take(run.state.server, 1))))


def test_without_penalty_it_is_local_training() -> None:
    for method in (FedAMP(lam=0.0, start="own"), FedAMP.as_published()):
        for a, b in zip(served(train(method)), served(train(LocalOnly())), strict=True):
            assert_same(a, b)


def test_attention_is_of_parameters_alone() -> None:
    """Running statistics differ by millions where features are large; parameters do not."""
    data = federation((7, 12, 6, 10, 16, 8))
    data.train.x[data.train.rows(0)] *= 1e3
    run = train(FedAMP(unit="one"), data, model=normalised, participation=1.0, rounds=1)
    assert not any("running" in name or "tracked" in name for name in run.state.server)
    models = served(run)
    parameters = [torch.cat([t.flatten() for n, t in m.items() if n.endswith(("weight", "bias"))]).double() for m in models]
    distance, unit = run.method.squared_distances(run.state.server, torch.arange(6))
    for j in range(6):
        assert_close(distance[0, j], (parameters[0] - parameters[j]).square().sum())
    assert unit == 1.0
    apart = (models[0]["1.running_var"] - models[1]["1.running_var"]).square().sum()
    assert apart > 1e4 * distance[0, 1]  # what it would have been
