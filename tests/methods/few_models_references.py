"""Float64 references of methods that share a few models among clients, beside IFCA and FedFew; see test_parity.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.training.run import Run
from tests.methods.formulas import COUNTS, EPOCHS, LR, ROUNDS, SEED, SHARE, K, M, N, Served, Weights, X, Y, mean, slope


def nll(p: Weights, i: int) -> Tensor:
    """The loss of each of client i's samples."""
    z = torch.tanh(X[i] @ p["W1"].T + p["b1"]) @ p["W2"].T + p["b2"]
    return z.exp().sum(1).log() - z[torch.arange(N[i]), Y[i]]


def weighted_sgd(i: int, r: int, batch: int, p: Weights, q: Tensor, model: int) -> Weights:
    """SGD on the mean of q_j·loss_j; a batch's gradient is a sum of those of its samples."""
    for epoch in range(EPOCHS):
        order = random_streams.order(SEED, r, torch.arange(M), K, epoch, COUNTS, int(COUNTS.max()))[i, model, : N[i]]
        for rows in order.split(batch):
            each = [slope(p, X[i][j : j + 1], Y[i][j : j + 1])[0] for j in rows.tolist()]
            p = {n: t - LR / len(rows) * sum(q[j] * g[n] for j, g in zip(rows, each, strict=True)) for n, t in p.items()}
    return p


def fedem(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """All of a client's models, and its weights in the last row."""
    models, pi = start[:K], torch.full((M, K), 1 / K, dtype=torch.float64)
    for r in range(1, ROUNDS + 1):
        trained = []
        for i in range(M):
            joint = torch.stack([pi[i, k] * torch.exp(-nll(models[k], i)) for k in range(K)])
            q = joint / joint.sum(0)
            pi[i] = q.mean(1)
            trained.append([weighted_sgd(i, r, batch, models[k], q[k] * (K if method.full_step else 1), k) for k in range(K)])
        models = [mean([trained[i][k] for i in range(M)], SHARE) for k in range(K)]
    return [mixed_model(models, pi[i]) for i in range(M)]


def mixed_model(models: list[Weights], weights_of: Tensor) -> Weights:
    return {f"{n} of {k}": t for k, p in enumerate(models) for n, t in p.items()} | {"log_weights": weights_of.log()}


FEW_MODELS: dict[str, Callable[[Any, list[Weights], int, Run], Served]] = {"fedem": fedem}
