from __future__ import annotations

import pytest
import torch

from fedfew.methods import LocalOnly, PFedMe
from fedfew.stack import take
from tests.methods.small import (
    FULL_BATCH,
    PLAIN,
    assert_close,
    assert_same,
    clients_of,
    federation,
    gradient,
    initial,
    linear,
    mean_by_samples,
    served,
    theta,
    train,
)

LR = FULL_BATCH["lr"]


def test_two_rounds_by_hand() -> None:
    data = federation()
    w = theta(initial(linear))
    v = [w for _ in range(len(data))]
    for _ in range(2):
        sent = []
        for i, (x, y) in enumerate(clients_of(data)):
            mine = v[i] = w
            for _ in range(FULL_BATCH["local_epochs"]):
                for _ in range(4):
                    v[i] = v[i] - LR * (gradient(v[i], x, y) + 0.6 * (v[i] - mine))
                mine = mine - 0.8 * LR * 0.6 * (mine - v[i])
            sent.append(mine)
        w = 0.3 * w + 0.7 * mean_by_samples(sent, data)
    run = train(PFedMe(lam=0.6, inner_steps=4, outer_step=0.8, beta=0.7), data, **FULL_BATCH)
    assert_close(theta(run.models[0].state_dict()), w)
    for i in range(len(data)):
        assert_close(theta(take(run.state.own, i)), v[i])


def test_without_pull_and_with_one_inner_step_a_round_is_local_only() -> None:
    once = PLAIN | {"rounds": 1}
    run, local = train(PFedMe(lam=0.0, inner_steps=1), **once), train(LocalOnly(), **once)
    for mine, theirs in zip(served(run), served(local), strict=True):
        assert_same(mine, theirs, 2e-6)
    start = initial()
    assert all(torch.equal(t, start[name]) for name, t in run.models[0].state_dict().items())  # w never moves


@pytest.mark.parametrize("farther", [1, 3])
def test_where_the_global_model_goes_all_the_way_it_is_where_the_personal_ones_are(farther: float) -> None:
    """lr·outer_step·λ ≥ 1: after a batch w = θ, so the server holds the mean of the personal models."""
    data = federation()
    run = train(PFedMe(lam=0.5, outer_step=farther / (0.5 * LR)), data, **(FULL_BATCH | {"rounds": 1}))
    personal = [theta(take(run.state.own, i)) for i in range(len(data))]
    assert_close(theta(run.models[0].state_dict()), mean_by_samples(personal, data))
