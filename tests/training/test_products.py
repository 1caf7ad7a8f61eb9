"""LoRA with average="product": the mean of the clients' products by hand, on all engines, resumed, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedfew
from fedfew.adapters import LoRA
from fedfew.config import TrainConfig
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.methods import METHODS
from fedfew.methods.base import Reply
from fedfew.stack import Tree, tensor
from fedfew.training.aggregation import Aggregation
from fedfew.training.checkpoint import State
from fedfew.training.history import History
from fedfew.training.products import decomposed, factors, moves_by_differences
from fedfew.training.server_optimizer import ServerOptimizer
from fedfew.training.server_step import ServerStep
from tests.adapters.test_lora import HIDDEN, Net, images
from tests.methods.small import FEATURES, PLAIN, assert_same, federation, mlp, served, tensors, train

A, B = "lora_A.weight", "lora_B.weight"


def step(average: str, rank: int = 1, moments: Tree | None = None, averaged: Tree | None = None, **settings: Any) -> ServerStep:
    """One round of FedAvg with two clients, of 3/4 and 1/4 of the samples, whose products are diag(1, 0) and diag(0, 1).

    The server starts with B = 0 and A = (1, 0). With rank 2 a second row of A, (0, 1), and a second column of B are there.
    """
    start: Tree = {A: torch.eye(2)[:rank][None], B: torch.zeros(1, 2, rank)}
    a, b = (t.repeat(2, 1, 1, 1) for t in (tensor(start, A), tensor(start, B)))
    b[0, 0, :, 0] = torch.tensor([1.0, 0.0])  # client 0: B·A = (1, 0)ᵀ (1, 0)
    b[1, 0, :, 0] = torch.tensor([0.0, 1.0])  # client 1: B·A = (0, 1)ᵀ (0, 1)
    a[1, 0, 0] = torch.tensor([0.0, 1.0])
    reply = Reply({A: a - tensor(start, A), B: b - tensor(start, B)}, torch.ones(2, 1), torch.tensor([3, 1]))
    config = TrainConfig(adapters=f"lora:rank={rank},average={average}", **settings)
    state = State(0, start, {}, History(), {}, moments=moments or {}, average=averaged or {})
    share = torch.tensor([0.75, 0.25], dtype=torch.float64)
    round = Aggregation(fedfew.FedAvg(), state, share, ServerOptimizer(config, lambda path: True))
    round.add(torch.tensor([0, 1]), reply)
    found = round.result()
    assert found is not None
    return found


def product(models: Tree) -> Tensor:
    return tensor(models, B)[0] @ tensor(models, A)[0]


def test_the_mean_by_hand_apart_and_of_products() -> None:
    """Apart: B = (3/4, 1/4)ᵀ, A = (3/4, 1/4). Of products: diag(3/4, 1/4), whose nearest of rank 1 is diag(3/4, 0)."""
    apart = product(step("ab").server)
    torch.testing.assert_close(apart, torch.tensor([[9.0, 3.0], [3.0, 1.0]]) / 16)
    nearest = step("product").server
    torch.testing.assert_close(product(nearest), torch.diag(torch.tensor([0.75, 0.0])))
    torch.testing.assert_close(tensor(nearest, A)[0], torch.tensor([[1.0, 0.0]]))  # as long as it was
    exact = step("product", rank=2).server
    torch.testing.assert_close(product(exact), torch.diag(torch.tensor([0.75, 0.25])))
    torch.testing.assert_close(tensor(exact, A).norm(), torch.tensor(2.0).sqrt())


def test_the_server_optimiser_and_the_average_over_rounds_are_of_products() -> None:
    """Momentum: 0.9 · ((0, 1), (1, 0)) + diag(3/4, 1/4). Average: half of ((2, 0), (0, 0)) and half of the new product."""
    moments: Tree = {"first": {B: torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])}}
    before: Tree = {A: torch.eye(2)[None], B: torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])}
    found = step(
        "product", 2, moments, before, server_optimizer="momentum", server_momentum=0.9, server_lr=1.0, server_average=0.5
    )
    moved = torch.tensor([[0.75, 0.9], [0.9, 0.25]])
    torch.testing.assert_close(product(found.server), moved)
    torch.testing.assert_close(product(found.average), (torch.tensor([[2.0, 0.0], [0.0, 0.0]]) + moved) / 2)
    first = found.moments["first"]
    assert isinstance(first, dict)
    torch.testing.assert_close(tensor(first, B)[0], moved)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, FEATURES + 2])
def test_a_round_gives_the_nearest_product_of_the_rank(rank: int) -> None:
    """Against numpy's decomposition of the mean of what the clients trained alone; with a high rank that is the mean itself."""
    data = federation()
    share = (data.train.count.double() / data.train.count.sum()).numpy()
    torch.manual_seed(1)  # a base with which the second singular value is a quarter of the first
    settings: dict[str, Any] = {"model": mlp(), "rounds": 1, "local_epochs": 8, **PLAIN}
    lora = LoRA(rank=rank, alpha=rank, average="product")
    server = train(fedfew.FedAvg(), data, **settings, adapters=lora).models[0][0]
    clients = served(train(fedfew.LocalOnly(), data, **settings, adapters=lora))
    products = np.stack([(state[f"0.{B}"] @ state[f"0.{A}"]).double().numpy() for state in clients])
    u, s, v = np.linalg.svd(np.einsum("i,ijk->jk", share, products))
    assert s[1] > 0.1 * s[0]  # the mean has a higher rank than 1
    expected = s[0] * np.outer(u[:, 0], v[0]) if rank == 1 else np.einsum("i,ijk->jk", share, products)
    np.testing.assert_allclose((server.lora_B.weight @ server.lora_A.weight).detach().numpy(), expected, atol=1e-6 * s[0])


def test_factors_stay_where_the_product_does_and_signs_are_fixed() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 7, generator=draw), torch.randn(2, 5, 3, generator=draw)
    moved = b @ a
    moved[1] *= 2
    new_a, new_b = factors(moved, a, b, 2)
    assert torch.equal(new_a[0], a[0])
    assert torch.equal(new_b[0], b[0])
    torch.testing.assert_close(new_b[1] @ new_a[1], moved[1])
    rows = new_a[1] @ new_a[1].T  # orthogonal, of equal length, together as long as A was
    torch.testing.assert_close(rows, torch.eye(3) * a[1].square().sum() / 3, rtol=1e-5, atol=1e-5)
    many = factors(torch.randn(20, 5, 7, generator=draw), torch.ones(20, 3, 7), torch.ones(20, 5, 3), 2)[0]
    assert bool((many.gather(2, many.abs().argmax(2, keepdim=True)) > 0).all())
    from_zero = factors(moved, torch.zeros_like(a), torch.zeros_like(b), 2)
    torch.testing.assert_close(from_zero[1] @ from_zero[0], moved, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("clients", "bound", "decomposed_rows"), [(5, 12, 12), (5, 8, 80), (25, 52, 80), (0, 2, 2)])
def test_a_low_rank_is_decomposed_in_the_small(clients: int, bound: int, decomposed_rows: int) -> None:
    """Against numpy in double precision. A bound below the rank is noticed, and one above half the size is of no use."""
    draw, rank = np.random.default_rng(0), 2
    means = np.zeros((3, 96, 80))
    for client in range(clients):  # of different lengths, so that singular values differ
        means += 2.0**-client * draw.normal(size=(3, 96, rank)) @ draw.normal(size=(3, rank, 80))
    u, s, v = decomposed(torch.from_numpy(means).float(), bound)
    assert s.shape == (3, decomposed_rows)
    expected = np.linalg.svd(means, full_matrices=False)
    np.testing.assert_allclose(s[:, :rank], expected.S[:, :rank], rtol=1e-5)
    nearest = (expected.U[:, :, :rank] * expected.S[:, None, :rank]) @ expected.Vh[:, :rank]
    found = (u[:, :, :rank] * s[:, None, :rank]) @ v[:, :rank]
    np.testing.assert_allclose(found, nearest, atol=1e-5 * max(1.0, float(expected.S.max())))


PRODUCT = LoRA(rank=2, alpha=2, average="product")


LONGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("ifca", "fedrep", "fedem")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedfew", *LONGER])
def test_engines_and_chunks_agree(name: str) -> None:
    method = METHODS[name](**({} if name == "fedrep" else {"models": 2}))
    first = tensors(train(method, adapters=PRODUCT))
    other = tensors(train(method, adapters=PRODUCT, engine="stacked", chunk=2))
    assert_same(first, other, 2e-5)
    apart = tensors(train(method, adapters=LoRA(rank=2, alpha=2)))
    assert not torch.allclose(apart["history/served_loss"][-1], first["history/served_loss"][-1], atol=1e-4)


@pytest.mark.slow
def test_convolutions_and_layers_with_two_names() -> None:
    runs = [train(fedfew.FedFew(models=2), images(), Net, adapters=PRODUCT, engine=e) for e in ("sequential", "stacked")]
    assert_same(*map(tensors, runs), 1e-4)


def test_a_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"server_optimizer": "momentum", "server_average": 0.5, "adapters": PRODUCT}
    train(fedfew.FedFew(models=2), **settings, rounds=2, folder=tmp_path / "run")
    resumed = train(fedfew.FedFew(models=2), **settings, rounds=4, folder=tmp_path / "run", resume=True)
    assert_same(tensors(resumed), tensors(train(fedfew.FedFew(models=2), **settings, rounds=4)))
    moments, models = resumed.state.moments["first"], resumed.state.server
    assert isinstance(moments, dict)
    assert tensor(moments, f"0.{B}").shape == (2, HIDDEN, FEATURES)  # of the product
    assert tensor(models, f"0.{B}").shape == (2, HIDDEN, 2)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (fedfew.FedFew(models=2, send="gradient"), {}, r"average is product, but fedfew as it is set does not just add the mean"),
        (fedfew.FedFew(models=2, share="body"), {}, r"average is product, but fedfew as it is set does not just add the mean"),
        (METHODS["scaffold"](), {}, r"average is product, but scaffold as it is set does not just add the mean"),
        (fedfew.FedAvg(), {"aggregator": "median"}, "aggregator must be mean where average is product, not 'median'"),
        (fedfew.FedAvg(), {"dp_noise": 1.0}, "dp_noise must be 0 where average is product"),
    ],
)
def test_what_products_cannot_be_averaged_with_is_refused(method: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(method, adapters=PRODUCT, **settings)


def test_masks_hide_single_products() -> None:
    with pytest.raises(ValueError, match="average must not be product where aggregation is masked"):
        DeploymentConfig(method="fedavg", aggregation="masked", adapters="lora:average=product")


def test_a_method_that_averages_nothing_says_so() -> None:
    lines: list[str] = []
    train(fedfew.LocalOnly(), adapters=PRODUCT, rounds=1, on_round=lambda p: lines.extend(p.events))
    assert "average of adapters is product, but local averages no updates: it has no effect" in lines


def test_which_methods_send_differences() -> None:
    """By what they do: the server's new models are the old ones plus the mean, under the model's names."""
    able = {name for name, kind in METHODS.items() if moves_by_differences(kind())}
    few, one = {"fedfew", "ifca", "fedem"}, {"fedavg", "fedprox", "fedsam", "ditto", "apfl", "fedala", "knnper", "perfedavg"}
    parts = {"fedrep", "fedbabu", "fedper", "lgfedavg", "fedbn", "fedrod"}
    assert able == few | one | parts
