"""What is not a number: it never wins a choice, and leaves out one model of one client, not all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedfew
from fedfew.local import Local, best_model
from fedfew.methods import FedFew, Outcome
from fedfew.methods.base import Reply
from fedfew.stack import Tree, leaves, tree_map
from tests.methods.small import FULL_BATCH, assert_close, clients_of, descend, federation, linear, loss_of, theta, train

CLIENTS, MODELS = 6, 2
NAN = float("nan")


@dataclass(frozen=True)
class Spoiled(FedFew):
    """FedFew whose clients' replies are not finite for some models."""

    pairs: tuple[tuple[int, int], ...] = ()
    where: str = "losses"

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        outcome = super().client(received, own, local)
        for i, k in self.pairs:
            for t in [outcome.reply.losses] if self.where == "losses" else leaves(outcome.reply.update):
                t[local.clients.tolist().index(i), k] = NAN
            for t in leaves(outcome.adapted):
                t[local.clients.tolist().index(i), k] = NAN
        return outcome


@dataclass(frozen=True)
class Relative(Spoiled):
    """Weights from each client's losses in relation to its largest: NaN, ∞ / ∞, for a model that is left out."""

    name = "relative"

    def log_weights(self, reply: Reply, share: Tensor, clients: Tensor) -> Tensor:
        return share.log()[:, None] - reply.losses / reply.losses.amax(1, keepdim=True)


def test_weights_are_not_looked_at_where_a_model_is_left_out() -> None:
    run = train(Relative(models=MODELS, pairs=((2, 0),)), data=federation(), **ONE_ROUND)
    assert all(bool(t.isfinite().all()) for t in leaves(run.state.server))


ONE_ROUND = FULL_BATCH | {"rounds": 1, "seed": 3}
pairs = st.sets(st.tuples(st.integers(0, CLIENTS - 1), st.integers(0, MODELS - 1)), max_size=2 * CLIENTS - 1)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(pairs, st.sampled_from(["losses", "update"]), st.booleans())
def test_a_model_that_is_not_finite_is_left_out_for_that_client_only(spoiled, where: str, normalise: bool) -> None:
    """The round is that of Eqs. 8 to 10 with sums over the pairs (client, model) that are left."""
    data, mu = federation(), 0.05
    method = Spoiled(
        models=MODELS,
        mu=mu,
        scale_free=False,
        loss_at="received",
        normalise=normalise,
        pairs=tuple(sorted(spoiled)),
        where=where,
    )
    run = train(method, data, **ONE_ROUND)
    start = [theta(m.state_dict()) for m in train(FedFew(models=MODELS), data, **(ONE_ROUND | {"lr": 1e-30})).models]
    share = data.train.count.double() / data.train.count.sum()
    left = torch.tensor([[(i, k) not in spoiled for k in range(MODELS)] for i in range(CLIENTS)])
    losses = torch.tensor([[loss_of(m, x, y) for m in start] for x, y in clients_of(data)], dtype=torch.float64)
    e = torch.exp(-share[:, None] * losses / mu) * left
    s = e.sum(1)
    alpha = torch.where(s > 0, 1 / s, 0.0) / (1 / s[s > 0]).sum()
    weight = alpha[:, None] * e / s.clamp_min(1e-300)[:, None]
    for k, model in enumerate(start):
        moves = torch.stack([descend(model, x, y) - model for x, y in clients_of(data)])
        scale = weight[:, k].sum() if normalise else 1.0
        step = torch.einsum("i,i...->...", weight[:, k], moves) / scale if left[:, k].any() else 0.0
        assert_close(theta(run.models[k].state_dict()), model + step)
    history = run.history
    out = ~left.any(1)
    assert int(history.last("left_out")) == int(out.sum())
    assert np.array_equal(np.isnan(history.last("adapted_accuracy")), out.numpy())
    assert np.array_equal(np.isnan(history.last("losses")), ~left.numpy() | out.numpy()[:, None])
    events = " ".join(run.state.events)
    assert ("model 0 left out" in events) == bool((~left[:, 0] & ~out).any())


@given(st.lists(st.lists(st.floats(0, 10) | st.just(NAN) | st.just(float("inf")), min_size=3, max_size=3), min_size=1))
def test_the_least_number_is_chosen(rows: list[list[float]]) -> None:
    for row, chosen in zip(rows, best_model(torch.tensor(rows, dtype=torch.float64)).tolist(), strict=True):
        numbers = [value for value in row if math.isfinite(value)]
        if numbers:
            assert row[chosen] == min(numbers)


def constant(logit: float) -> nn.Module:
    module = nn.Linear(1, 2)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.copy_(torch.tensor([0.0, logit]))
    return module


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-5, 5) | st.just(NAN), min_size=1, max_size=5))
def test_a_new_client_never_chooses_a_model_whose_loss_is_not_a_number(logits: list[float]) -> None:
    x, y = np.zeros((6, 1), np.float32), np.ones(6, np.int64)  # the loss falls with the logit of class 1
    models = [constant(logit) for logit in logits]
    numbers = [logit for logit in logits if logit == logit]
    if not numbers:
        with pytest.raises(ValueError, match=f"none of the {len(logits)} has a finite loss"):
            fedfew.select(models, x, y)
        with pytest.raises(ValueError, match="none of the"):
            fedfew.join(models, x, y)
        return
    least = min(np.log1p(np.exp(-logit)) for logit in numbers)
    for chosen in (fedfew.select(models, x, y), fedfew.join(models, x, y).model):
        assert np.log1p(np.exp(-logits[chosen])) == pytest.approx(least, rel=1e-6)


class Overflowing(nn.Module):
    """Logits that are NaN for samples whose first feature is large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + torch.where(x[:, :1] > 1e6, NAN, 0.0)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_client_that_was_left_out_has_no_adapted_score_and_nan_is_never_right(engine: str) -> None:
    data = federation()
    data.train.x[data.train.rows(2)] = 1e7
    data.test.x[data.test.rows(2)] = 1e7
    data.test.y[data.test.rows(2)] = 0  # what argmax says of NaN
    history = train(fedfew.FedAvg(), data, model=Overflowing, engine=engine, participation=1.0).history
    assert np.isnan(history.adapted_accuracy[:, 2]).all()
    assert not np.isnan(np.delete(history.adapted_accuracy, 2, 1)).any()
    assert (history.served_accuracy[:, 2] == 0).all()


def test_other_parts_of_a_reply_are_as_they_were() -> None:
    from fedfew.methods import Reply
    from fedfew.training.usable import usable

    update: Tree = {"w": torch.ones(3, 2, 4), "shared": torch.ones(3, 1, 2)}
    outcome = Outcome(Reply(update, torch.ones(3, 2), torch.ones(3)), {}, tree_map(torch.clone, update))
    at, same = usable(outcome)
    assert at.tolist() == [0, 1, 2]
    assert same is outcome
    update["w"][0, 1, 0] = NAN
    update["shared"][2] = NAN
    at, left = usable(outcome)
    assert at.tolist() == [0, 1]
    assert left.reply.losses.tolist() == [[1, torch.inf], [1, 1]]
    assert left.reply.update["w"].sum(2).tolist() == [[4, 0], [4, 4]]
    assert left.reply.update["shared"].sum(2).tolist() == [[2], [2]]
