from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew import train as fedfew_train
from fedfew.federation import Federation
from fedfew.methods import FedAvg, FedFew, Reply
from fedfew.stack import Tree, leaves
from fedfew.weighted_mean import WeightedMean
from tests.methods.small import FULL_BATCH, assert_close, clients_of, descend, federation, loss_of, tensors, theta, train


def test_a_round_by_hand() -> None:
    """With e[i, k] = exp(−n_i/Σn·L[i, k]/μ) and S_i = Σ_k e[i, k]: w[i, k] = e[i, k]/S_i and α_i ∝ 1/S_i."""
    data, mu = federation(), 0.05
    still = train(FedFew(models=2), data, **(FULL_BATCH | {"lr": 1e-30}))
    models = [theta(m.state_dict()) for m in still.models]
    share = (data.train.count / data.train.count.sum()).tolist()
    e = [[math.exp(-s * loss_of(m, x, y) / mu) for m in models] for s, (x, y) in zip(share, clients_of(data), strict=True)]
    alpha = [1 / sum(row) for row in e]
    weight = torch.tensor([[a * value / sum(row) for value in row] for a, row in zip(alpha, e, strict=True)]).double() / sum(
        alpha
    )
    assert_close(weight.sum(), torch.tensor(1.0))
    moves = [torch.stack([descend(m, x, y) - m for x, y in clients_of(data)]) for m in models]
    for normalise in (True, False):
        method = FedFew(models=2, mu=mu, scale_free=False, normalise=normalise, loss_at="received")
        run = train(method, data, **(FULL_BATCH | {"rounds": 1}))
        for k in range(2):
            step = torch.einsum("i,i...->...", weight[:, k], moves[k]) / (weight[:, k].sum() if normalise else 1)
            assert_close(theta(run.models[k].state_dict()), models[k] + step)


def test_losses_at_the_received_models_tell_groups_apart_where_a_round_fits_any_model() -> None:
    """y rises with x at two clients and falls at one. An epoch of 40 steps fits any model to its client, so losses are alike."""
    x = torch.randn(3, 400, 4, generator=torch.Generator().manual_seed(0))
    y = x[..., :1] * torch.tensor([1.0, -1.0, 1.0])[:, None, None]
    data = Federation.from_arrays(list(zip(x, y, strict=True)), list(zip(x, y, strict=True)))
    largest = {}
    for at in ("training", "received"):
        run = fedfew_train(data, "mlp", FedFew(models=2, loss_at=at), rounds=10, lr=0.1, batch_size=10, engine="stacked")
        largest[at] = run.history.last("w").max(1).min()
    assert largest["training"] < 0.6 < 0.99 < largest["received"]
    assert run.choice[0] == run.choice[2] != run.choice[1]


def test_one_model_with_equal_weights_is_fedavg() -> None:
    data = federation((8,) * 6)
    fedfew = tensors(train(FedFew(models=1, mu=1e9, weigh_samples=False), data))
    fedavg = tensors(train(FedAvg(), data))
    for name, value in fedavg.items():
        assert_close(fedfew[name].nan_to_num(-1.0), value.nan_to_num(-1.0))


@pytest.mark.parametrize("mu", [0.02, 0.2, 5.0])
def test_a_federation_twice_over_is_the_same(mu: float) -> None:
    """Of clients, and of samples: μ and the weights depend neither on M nor on the unit of the counts (with no limit on α)."""
    data = federation()
    rows = {name: [split.of(i) for i in range(len(data))] for name, split in data.splits.items()}
    clients_twice = Federation.from_arrays(rows["train"] * 2, rows["test"] * 2, classes=data.classes)
    samples = [(torch.cat([x, x]), torch.cat([y, y])) for x, y in rows["train"]]
    samples_twice = Federation.from_arrays(samples, rows["test"], classes=data.classes)
    method = FedFew(models=2, mu=mu, most_share=1.0)
    once = [theta(m.state_dict()) for m in train(method, data, **FULL_BATCH).models]
    for other in (clients_twice, samples_twice):
        for model, expected in zip(train(method, other, **FULL_BATCH).models, once, strict=True):
            assert_close(theta(model.state_dict()), expected)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.just(0.0) | st.floats(1e-3, 50), min_size=6, max_size=6).filter(any),
    st.booleans(),
    st.sampled_from([0.02, 0.3]),
    st.booleans(),
)
def test_preferences_are_those_of_equation_8(preference: list[float], normalise: bool, mu: float, weigh: bool) -> None:
    """∇_k g = Σ_i λ_i α_i w[i, k] ∇L_i(θ_k), where α sums to one and λ_i α_i does not; normalised, divided by its own sum."""
    data = federation()
    settings = FULL_BATCH | {"rounds": 1}
    models = [theta(m.state_dict()) for m in train(FedFew(models=2), data, **(settings | {"lr": 1e-30})).models]
    share = data.train.count.double() / data.train.count.sum() if weigh else torch.ones(6, dtype=torch.float64)
    lam = torch.tensor(preference, dtype=torch.float64)
    losses = torch.tensor([[loss_of(m, x, y) for m in models] for x, y in clients_of(data)], dtype=torch.float64)
    lowest = (lam * share)[:, None] * losses / mu
    log_alpha = torch.log_softmax(-torch.logsumexp(-lowest, 1), 0)
    log_weight = (lam.log() + log_alpha)[:, None] + torch.log_softmax(-lowest, 1)  # a plain product may be 0 for all clients
    weight = log_weight.softmax(0) if normalise else log_weight.exp()
    form = {"scale_free": False, "normalise": normalise, "loss_at": "received", "weigh_samples": weigh}
    method = FedFew(models=2, mu=mu, preference=tuple(preference), **form)
    run = train(method, data, **settings)
    for k, model in enumerate(models):
        moves = torch.stack([descend(model, x, y) - model for x, y in clients_of(data)])
        step = torch.einsum("i,i...->...", weight[:, k], moves)
        assert_close(theta(run.models[k].state_dict()), model + step)


def test_preferences_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ValueError, match=r"preference must be .* > 0 for one of them"):
        FedFew(models=2, preference=(0.0, 0.0))


def test_preferences_are_not_cut_to_single_precision() -> None:
    """λ = 10⁸ + 1 is not a float32. Losses of 10⁻⁸ below and above: exp(−λL/μ) tells."""
    reply = Reply({}, torch.tensor([[1.0, 2.0]], dtype=torch.float64), torch.tensor([1]))
    method = FedFew(models=2, mu=1.0, preference=(1e8 + 1,), weigh_samples=False)
    log_w = method.log_weights(reply, torch.ones(1), torch.tensor([0]))
    assert float(log_w[0, 0] - log_w[0, 1]) == 1e8 + 1


@pytest.mark.parametrize("normalise", [True, False])
def test_the_body_moves_by_the_preferred_clients(normalise: bool) -> None:
    """One reply by hand: K = 2 heads on one body, λ = (3, 1)."""
    method = FedFew(models=2, mu=0.5, share="body", preference=(3.0, 1.0), weigh_samples=False, normalise=normalise)
    losses = torch.tensor([[0.2, 0.6], [0.4, 0.1]], dtype=torch.float64)
    update: Tree = {
        "body": {"b": torch.tensor([[[1.0]], [[10.0]]]).double()},
        "heads": {"h": torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]).double()},
    }
    reply, share, clients = Reply(update, losses, torch.ones(2)), torch.ones(2), torch.arange(2)
    mean = WeightedMean(2)
    mean.add(method.log_weights(reply, share, clients), update, method.log_whole(reply, share, clients))
    server = method.aggregate({"body": {"b": torch.zeros(1, 1).double()}, "heads": {"h": torch.zeros(2, 1).double()}}, mean)
    lam = torch.tensor([3.0, 1.0]).double()
    e = torch.exp(-lam[:, None] * losses / 0.5)
    alpha = (1 / e.sum(1)) / (1 / e.sum(1)).sum()
    weight = (lam * alpha)[:, None] * e / e.sum(1, keepdim=True)
    body = (weight.sum(1) * torch.tensor([1.0, 10.0])).sum() / (weight.sum() if normalise else 1)
    heads = (weight * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(0) / (weight.sum(0) if normalise else 1)
    assert_close(leaves(server["body"])[0][0, 0], body)
    assert_close(leaves(server["heads"])[0][:, 0], heads)
