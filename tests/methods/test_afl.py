from __future__ import annotations

from itertools import pairwise

import torch

from fedfew.methods import AFL
from fedfew.methods.afl import to_simplex
from tests.methods.small import (
    FULL_BATCH,
    assert_close,
    clients_of,
    descend,
    federation,
    initial,
    linear,
    loss_of,
    theta,
    train,
)


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    """Against a fine grid of the simplex, and by hand: (0.9, 0.6, −0.2) less 0.25 each, and no less than 0."""
    assert_close(to_simplex(torch.tensor([0.9, 0.6, -0.2])), torch.tensor([0.65, 0.35, 0.0]))
    grid = torch.tensor([[a, b, 100 - a - b] for a in range(101) for b in range(101 - a)]).double() / 100
    for seed in range(10):
        v = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        found = to_simplex(v)
        assert abs(float(found.sum()) - 1) < 1e-12
        assert float(found.min()) >= 0
        assert float((found - v).norm()) <= float((grid - v).norm(dim=1).min()) + 1e-12
    forged = torch.tensor([0.25, 0.25, 3e38], dtype=torch.float64)
    assert to_simplex(forged).tolist() == [0.0, 0.0, 1.0]


def test_two_rounds_by_hand() -> None:
    data = federation()
    w, weights = theta(initial(linear)), torch.full((6,), 1 / 6, dtype=torch.float64)
    for _ in range(2):
        losses = torch.tensor([loss_of(w, x, y) for x, y in clients_of(data)], dtype=torch.float64)
        moved = torch.stack([descend(w, x, y) - w for x, y in clients_of(data)])
        w = w + torch.einsum("i,i...->...", weights, moved)
        weights = to_simplex(weights + 0.5 / 6 * losses)
    run = train(AFL(step=0.5), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    assert_close(run.state.server["weights"], weights)
    assert float(weights.max() - weights.min()) > 1e-3


def test_without_a_step_all_clients_count_alike_whatever_their_size() -> None:
    data = federation()
    w = theta(initial(linear))
    expected = torch.stack([descend(w, x, y) for x, y in clients_of(data)]).mean(0)
    run = train(AFL(step=0.0), data, **(FULL_BATCH | {"rounds": 1}))
    assert_close(theta(run.models[0].state_dict()), expected)


def test_a_large_step_leaves_the_worst_client_alone() -> None:
    run = train(AFL(step=1e3), federation(), **(FULL_BATCH | {"rounds": 1}))
    worst = int(torch.from_numpy(run.history.last("losses"))[:, 0].argmax())
    assert run.state.server["weights"].argmax() == worst
    assert float(run.state.server["weights"][worst]) == 1.0


def test_a_round_of_clients_without_weight_leaves_the_model_as_it_is() -> None:
    runs = [train(AFL(step=1e3), rounds=rounds, participation=0.2) for rounds in (1, 6)]
    assert float(runs[0].state.server["weights"].max()) == 1.0
    present = [(row == row).all(1) for row in runs[1].history["losses"]]
    assert any(not (a & b).any() for a, b in pairwise(present))
    assert all(bool(t.isfinite().all()) for t in runs[1].models[0].state_dict().values())
