"""Float64 references of methods that share a few models among clients, beside IFCA and FedFew; see test_parity.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.training.run import Run
from tests.methods.formulas import (
    CLASSES,
    COUNTS,
    EPOCHS,
    LR,
    ROUNDS,
    SEED,
    SHARE,
    K,
    Local,
    M,
    N,
    Served,
    Weights,
    X,
    Y,
    mean,
    slope,
)


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


def fedrc(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    models, omega = start[:K], torch.full((M, K), 1 / K, dtype=torch.float64)
    frequency = torch.full((K, CLASSES), 1 / CLASSES, dtype=torch.float64)
    for r in range(1, ROUNDS + 1):
        trained, counted = [], torch.zeros(K, CLASSES, dtype=torch.float64)
        for i in range(M):
            joint = torch.stack([omega[i, k] * torch.exp(-nll(models[k], i)) / frequency[k, Y[i]] for k in range(K)])
            gamma = joint / joint.sum(0)
            omega[i] = gamma.mean(1)
            for k in range(K):
                for c in range(CLASSES):
                    counted[k, c] += gamma[k][Y[i] == c].sum()
            by = K if method.full_step else 1
            trained.append([weighted_sgd(i, r, batch, models[k], gamma[k] * by, k) for k in range(K)])
        models = [mean([trained[i][k] for i in range(M)], SHARE) for k in range(K)]
        frequency = (counted / counted.sum(1, keepdim=True)).clamp_min(1e-3)
    return [mixed_model(models, omega[i]) for i in range(M)]


def fedsoft(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    centres, own = start[:K], [start[0]] * M
    for r in range(1, ROUNDS + 1):
        u = torch.zeros(M, K, dtype=torch.float64)
        for i in range(M):
            best = torch.stack([nll(c, i) for c in centres]).argmin(0)
            u[i] = torch.stack([(best == s).double().mean() for s in range(K)]).clamp_min(method.sigma)
            for x, y, _ in Local(i, r, batch).batches(EPOCHS):
                g, _ = slope(own[i], x, y)
                pull = {n: sum(u[i, s] * (t - centres[s][n]) for s in range(K)) for n, t in own[i].items()}
                own[i] = {n: t - LR * (g[n] + method.lam * pull[n]) for n, t in own[i].items()}
        centres = [mean(own, [N[i] * float(u[i, s]) for i in range(M)]) for s in range(K)]
    return own


def flat(p: Weights) -> Tensor:
    return torch.cat([t.flatten() for t in p.values()])


def cfl(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """Splits are looked for one by one: of all ways to split a cluster, the one with the smallest largest similarity across."""
    models, cluster = [start[0]], [0] * M
    for r in range(1, ROUNDS + 1):
        trained = [Local(i, r, batch).sgd(models[cluster[i]])[0] for i in range(M)]
        moved = [flat(trained[i]) - flat(models[cluster[i]]) for i in range(M)]
        of = [[i for i in range(M) if cluster[i] == k] for k in range(len(models))]
        for k, members in enumerate(of):
            models[k] = mean([trained[i] for i in members], [SHARE[i] for i in members])
        for k, members in enumerate(of):
            total = sum(N[i] for i in members)
            middle = sum(N[i] / total * moved[i] for i in members)
            if len(members) < 2 or len(models) == method.models:
                continue
            if float(middle.norm()) >= method.epsilon * max(float(moved[i].norm()) for i in members):
                continue

            def across(half: tuple[int, ...], members: list[int] = members, moved: list[Tensor] = moved) -> float:
                pairs = [(moved[i], moved[j]) for i in half for j in members if j not in half]
                return max(float(a @ b / (a.norm() * b.norm())) for a, b in pairs)

            halves = [h for size in range(1, len(members)) for h in itertools.combinations(members, size)]
            best = min(across(h) for h in halves)
            (small,) = (h for h in halves if across(h) < best + 1e-9 and sum(N[i] for i in h) <= total / 2)
            for i in small:
                cluster[i] = len(models)
            models.append(models[k])
    assert len(models) > 1  # there was something to split
    return [models[cluster[i]] for i in range(M)]


def fesem(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    cluster, centres = [0] * M, [start[0]] * method.models
    for r in range(1, ROUNDS + 1):
        w = [Local(i, r, batch).sgd(centres[cluster[i]])[0] for i in range(M)]
        if r == 1:
            middle = mean(w, [1.0] * M)
            chosen = [max(range(M), key=lambda i: apart(w[i], middle))]
            while len(chosen) < method.models:
                chosen.append(max(range(M), key=lambda i: min(apart(w[i], w[j]) for j in chosen)))
            centres = [w[j] for j in chosen]
        for _ in range(10 if r == 1 else 1):
            cluster = [min(range(method.models), key=lambda k, i=i: apart(w[i], centres[k])) for i in range(M)]
            for k in set(cluster):
                joined = [i for i in range(M) if cluster[i] == k]
                centres[k] = mean([w[i] for i in joined], [SHARE[i] for i in joined])
    assert len(set(cluster)) > 1
    return [centres[k] for k in cluster]


def apart(a: Weights, b: Weights) -> float:
    return float((flat(a) - flat(b)).norm())


FEW_MODELS: dict[str, Callable[[Any, list[Weights], int, Run], Served]] = {
    "fedem": fedem,
    "fedrc": fedrc,
    "fedsoft": fedsoft,
    "cfl": cfl,
    "fesem": fesem,
}
