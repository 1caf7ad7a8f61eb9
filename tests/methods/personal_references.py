"""Float64 references of the methods with personal parts, written from the papers' formulas."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from fedfew import random_streams
from fedfew.training.run import Run
from tests.methods.formulas import (
    BODY,
    CLASSES,
    EPOCHS,
    HEAD,
    LR,
    ROUNDS,
    SEED,
    SHARE,
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


def joined(body: Weights, head: Weights) -> Weights:
    return {n: body[n] for n in BODY} | {n: head[n] for n in HEAD}


def fedper(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """One local SGD on all layers; the body is averaged."""
    body, heads = start[0], [start[0]] * M
    for r in range(1, ROUNDS + 1):
        heads = [Local(i, r, batch).sgd(joined(body, heads[i]))[0] for i in range(M)]
        body = mean(heads, SHARE)
    return [joined(body, heads[i]) for i in range(M)]


def lgfedavg(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """The same with body and head exchanged."""
    bodies, head = [start[0]] * M, start[0]
    for r in range(1, ROUNDS + 1):
        bodies = [Local(i, r, batch).sgd(joined(bodies[i], head))[0] for i in range(M)]
        head = mean(bodies, SHARE)
    return [joined(bodies[i], head) for i in range(M)]


def fedbn(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """FedAvg, as the model has no BatchNorm (with BatchNorm: test_fedbn.py). kNN-Per too; its memory is in test_knnper.py."""
    w = start[0]
    for r in range(1, ROUNDS + 1):
        w = mean([Local(i, r, batch).sgd(w)[0] for i in range(M)], SHARE)
    return [w] * M


def fedbabu(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """The body is averaged, the head never moves; fine-tuning starts from the body as received."""
    body, tuned = start[0], [start[0]] * M
    only = {"whole": (*BODY, *HEAD), "head": HEAD, "body": BODY}[method.finetune]
    for r in range(1, ROUNDS + 1):
        tuned = [Local(i, r, batch).sgd(body, method.finetune_epochs, first=EPOCHS, only=only)[0] for i in range(M)]
        body = mean([Local(i, r, batch).sgd(body, only=BODY)[0] for i in range(M)], SHARE)
    return tuned


def fedrod(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """Balanced softmax for body and generic head; the personal head's gradient is (softmax − one-hot)ᵀ·features."""
    w, P = start[0], [{n: torch.zeros_like(start[0][n]) for n in HEAD} for _ in range(M)]
    for r in range(1, ROUNDS + 1):
        sent = []
        for i in range(M):
            g, p = w, P[i]
            offset = method.gamma * Y[i].bincount(minlength=CLASSES).double().clamp_min(1e-6).log()
            for x, y, _ in Local(i, r, batch).batches(EPOCHS):
                of_generic, _ = slope(g | {"b2": g["b2"] + offset}, x, y)  # an offset of the logits is one of the bias
                both = g | {n: g[n] + p[n] for n in HEAD}
                of_personal, _ = slope(both, x, y)
                g = {n: g[n] - LR * of_generic[n] for n in g}
                p = {n: p[n] - LR * of_personal[n] for n in HEAD}
            P[i] = p
            sent.append(g)
        w = mean(sent, SHARE)
    return [w | {n: w[n] + P[i][n] for n in HEAD} for i in range(M)]


def feddbe(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """κ/2·mean((z̄_i − z̄)²) has the gradient κ·(z̄_i − z̄)/d in z̄_i, μ/b of which falls on each sample's features."""
    w, p, z = start[0], [torch.zeros_like(start[0]["b1"]) for _ in range(M)], None
    for r in range(1, ROUNDS + 1):
        means = [torch.tanh(X[i] @ w["W1"].T + w["b1"]).mean(0) for i in range(M)]
        sent = []
        for i in range(M):
            mine, bias = w, p[i]
            for x, y, _ in Local(i, r, batch).batches(EPOCHS):
                h = torch.tanh(x @ mine["W1"].T + mine["b1"])
                logits = (h + bias) @ mine["W2"].T + mine["b2"]
                e = (logits.softmax(1) - torch.eye(CLASSES, dtype=torch.float64)[y]) / len(y)
                of_features = e @ mine["W2"]
                of_bias = of_features.sum(0)
                if z is not None:
                    apart = (1 - method.mean_momentum) * means[i] + method.mean_momentum * h.mean(0) - z
                    of_features = of_features + method.kappa * method.mean_momentum * apart / len(z) / len(y)
                d = of_features * (1 - h**2)
                g = {"W1": d.T @ x, "b1": d.sum(0), "W2": e.T @ (h + bias), "b2": e.sum(0)}
                mine, bias = {n: mine[n] - LR * g[n] for n in mine}, bias - LR * of_bias
            p[i] = bias
            sent.append(mine)
        if z is None:
            z = mean([{"z": m} for m in means], SHARE)["z"]
        w = mean(sent, SHARE)
    return [w | {"b2": w["b2"] + w["W2"] @ p[i]} for i in range(M)]


def fedala(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """W ← clip(W − η·∇F(Θ̂) ⊙ (Θ − Θ_i)) in the last layers, then SGD from Θ̂."""
    names = HEAD if method.layers == 1 else (*BODY, *HEAD)
    w, last, W = start[0], [start[0]] * M, [{n: torch.ones_like(start[0][n]) for n in names} for _ in range(M)]

    def mix(i: int) -> Weights:
        return w | {n: last[i][n] + (w[n] - last[i][n]) * W[i][n] for n in names}

    for r in range(1, ROUNDS + 1):
        new = []
        for i in range(M):
            for x, y, _ in Local(i, r, batch).batches(method.ala_epochs):
                g, _ = slope(mix(i), x, y)
                W[i] = {n: (W[i][n] - method.eta * g[n] * (w[n] - last[i][n])).clamp(0, 1) for n in names}
            new.append(Local(i, r, batch).sgd(mix(i), first=method.ala_epochs)[0])
        last = new
        w = mean(new, SHARE)
    assert any(bool(((W[i]["W2"] > 0.01) & (W[i]["W2"] < 0.99)).any()) for i in range(M))  # neither model is used alone
    return [mix(i) for i in range(M)]


def least_by_trial(P: Tensor) -> Tensor:
    """The least αᵀPα over the simplex: of all sets of weights that may be positive, the best whose solution is feasible."""
    best, least = torch.zeros(0), math.inf
    for size in range(1, len(P) + 1):
        for at in map(list, itertools.combinations(range(len(P)), size)):
            x = torch.linalg.solve(P[at][:, at], torch.ones(size, dtype=torch.float64))
            alpha = torch.zeros(len(P), dtype=torch.float64)
            alpha[at] = x / x.sum()
            value = float(alpha @ P @ alpha)
            if bool((alpha >= 0).all()) and value < least:
                best, least = alpha, value
    return best


def fedpac(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    def features(p: Weights, x: Tensor) -> Tensor:
        return torch.tanh(x @ p["W1"].T + p["b1"])

    def by_class(values: Tensor, i: int) -> Tensor:
        return torch.stack([values[Y[i] == c].sum(0) for c in range(CLASSES)])

    body, heads, centroids = start[0], [start[0]] * M, None
    for r in range(1, ROUNDS + 1):
        z = [features(body, X[i]) for i in range(M)]
        h = torch.stack([by_class(z[i], i) / N[i] for i in range(M)])
        V = torch.stack([(z[i].square().sum() / N[i] - h[i].square().sum()) / N[i] for i in range(M)])
        sent = []
        for i in range(M):
            mine, _ = Local(i, r, batch).sgd(joined(body, heads[i]), method.head_epochs, only=HEAD)
            for x, y, _ in Local(i, r, batch).batches(EPOCHS, first=method.head_epochs):
                g, _ = slope(mine, x, y)
                if centroids is not None:
                    f = features(mine, x)
                    d = method.lam * 2 * (f - centroids[y]) / f.shape[1] / len(y) * (1 - f**2)
                    g = g | {"W1": g["W1"] + d.T @ x, "b1": g["b1"] + d.sum(0)}
                mine = {n: mine[n] - LR * g[n] if n in BODY else mine[n] for n in mine}
            sent.append(mine)
        everyone = sum(by_class(features(sent[i], X[i]), i) for i in range(M))
        centroids = everyone / sum(Y[i].bincount(minlength=CLASSES) for i in range(M))[:, None]
        for i in range(M):
            apart = (h[i] - h).flatten(1)
            P = torch.stack([(apart * apart[j]).sum(1) for j in range(M)]) + V.diag()
            alpha = least_by_trial(P)
            heads[i] = mean(sent, alpha.tolist())
        body = mean(sent, SHARE)
    return [joined(body, heads[i]) for i in range(M)]


def fedfomo(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """w_n ∝ max(0, (L(θ_i) − L(θ_n))/‖θ_n − θ_i‖) on the held-out samples; then SGD on the others."""
    models, out = [start[0]] * M, [max(1, round(method.holdout * n)) for n in N]
    out = [o + ((n - o) % batch == 1) for n, o in zip(N, out, strict=True)]  # a batch of one is held out, too
    rest = torch.tensor([n - o for n, o in zip(N, out, strict=True)])
    used = 0

    for r in range(1, ROUNDS + 1):
        new = []
        for i in range(M):
            x, y, mine = X[i][-out[i] :], Y[i][-out[i] :], models[i]
            apart = [{n: other[n] - mine[n] for n in mine} for other in models]
            length = [math.sqrt(sum(float(t.square().sum()) for t in d.values())) for d in apart]
            gain = [slope(mine, x, y)[1] - slope(other, x, y)[1] for other in models]
            w = [max(0.0, g / d) if d else 0.0 for g, d in zip(gain, length, strict=True)]
            used += sum(value > 0 for value in w)
            if sum(w):
                mine = {n: t + sum(value / sum(w) * d[n] for value, d in zip(w, apart, strict=True)) for n, t in mine.items()}
            for epoch in range(EPOCHS):
                order = random_streams.order(SEED, r, torch.arange(M), 1, epoch, rest, int(rest.max()))[i, 0, : int(rest[i])]
                for rows in order.split(batch):
                    g, _ = slope(mine, X[i][rows], Y[i][rows])
                    mine = {n: t - LR * g[n] for n, t in mine.items()}
            new.append(mine)
        models = new
    assert used > 5  # some models of others are better
    return models


PERSONAL = {
    "fedper": fedper,
    "lgfedavg": lgfedavg,
    "fedbn": fedbn,
    "fedbabu": fedbabu,
    "fedrod": fedrod,
    "feddbe": feddbe,
    "fedala": fedala,
    "fedpac": fedpac,
    "knnper": fedbn,
    "fedfomo": fedfomo,
}
