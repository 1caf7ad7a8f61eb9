from __future__ import annotations

import math

import torch

from fedfew.methods import FedAvg, FedFew
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
        method = FedFew(models=2, mu=mu, normalise=normalise, loss_at="received")
        run = train(method, data, **(FULL_BATCH | {"rounds": 1}))
        for k in range(2):
            step = torch.einsum("i,i...->...", weight[:, k], moves[k]) / (weight[:, k].sum() if normalise else 1)
            assert_close(theta(run.models[k].state_dict()), models[k] + step)


def test_one_model_with_equal_weights_is_fedavg() -> None:
    data = federation((8,) * 6)
    fedfew = tensors(train(FedFew(models=1, mu=1e9, weigh_samples=False), data))
    fedavg = tensors(train(FedAvg(), data))
    for name, value in fedavg.items():
        assert_close(fedfew[name].nan_to_num(-1.0), value.nan_to_num(-1.0))
