"""Float64 references of methods whose local steps take several gradients; see test_parity.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedfew.training.run import Run
from tests.methods.formulas import EPOCHS, LR, ROUNDS, SHARE, Local, M, N, Served, Weights, X, Y, mean, slope


def along(p: Weights, g: Weights, by: float) -> Weights:
    return {n: t + by * g[n] for n, t in p.items()}


def fedsam(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w = start[0]
    for r in range(1, ROUNDS + 1):
        sent = []
        for i in range(M):
            p = w
            for x, y, _ in Local(i, r, batch).batches(2):
                g, _ = slope(p, x, y)
                length = sum(float(t.square().sum()) for t in g.values()) ** 0.5
                p = along(p, slope(along(p, g, method.rho / length), x, y)[0], -LR)
            sent.append(p)
        w = mean(sent, SHARE)
    return [w] * M


def mofedsam(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w, d = start[0], {n: torch.zeros_like(t) for n, t in start[0].items()}
    for r in range(1, ROUNDS + 1):
        sent = []
        for i in range(M):
            p = w
            for x, y, _ in Local(i, r, batch).batches(2):
                g, _ = slope(p, x, y)
                length = sum(float(t.square().sum()) for t in g.values()) ** 0.5
                sharp, _ = slope(along(p, g, method.rho / length), x, y)
                p = {n: t - LR * (method.beta * sharp[n] + (1 - method.beta) * d[n]) for n, t in p.items()}
            sent.append(p)
        steps = sum(SHARE[i] * EPOCHS * -(-N[i] // batch) for i in range(M))
        new = mean(sent, SHARE)
        d, w = {n: (w[n] - new[n]) / (LR * steps) for n in w}, new
    return [w] * M


def fedmgda(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w = start[0]
    for r in range(1, ROUNDS + 1):
        moved = [{n: t - w[n] for n, t in Local(i, r, batch).sgd(w)[0].items()} for i in range(M)]
        length = [sum(float(t.square().sum()) for t in d.values()) ** 0.5 for d in moved]
        unit = torch.stack([torch.cat([t.flatten() for t in d.values()]) / a for d, a in zip(moved, length, strict=True)])
        share = torch.tensor(SHARE, dtype=torch.float64)
        weight = least_by_bounds(unit @ unit.T, (share - method.epsilon).clamp_min(0), (share + method.epsilon).clamp_max(1))
        assert float((weight - share).abs().max()) > 0.01
        typical = sum(s * a for s, a in zip(SHARE, length, strict=True))
        w = {
            n: t + method.server_step * typical * sum(weight[i] / length[i] * moved[i][n] for i in range(M)) for n, t in w.items()
        }
    return [w] * M


def least_by_bounds(form: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The least αᵀ·form·α with Σα = 1 and low ≤ α ≤ high: of all ways to put weights at a bound, the best that is allowed."""
    best, found = torch.inf, low
    for places in itertools.product("lhf", repeat=len(form)):
        alpha = torch.where(torch.tensor([p == "l" for p in places]), low, high)
        free = torch.tensor([p == "f" for p in places])
        if free.any():
            alpha[free] = 0.0
            m = int(free.sum())
            system = torch.ones(m + 1, m + 1, dtype=form.dtype)  # [form −1; 1 0]·[α, slope] = [−form·fixed, 1 − Σ fixed]
            system[:m, :m], system[:m, m], system[m, m] = form[free][:, free], -1.0, 0.0
            right = torch.cat([-(form @ alpha)[free], (1 - alpha.sum())[None]])
            alpha[free] = torch.linalg.lstsq(system, right[:, None]).solution[:m, 0]
        inside = bool(((alpha >= low - 1e-12) & (alpha <= high + 1e-12)).all()) and abs(float(alpha.sum()) - 1) < 1e-9
        value = float(alpha @ form @ alpha)
        if inside and value < best:
            best, found = value, alpha
    return found


def perfedavg(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w, personal = start[0], [start[0]] * M
    for r in range(1, ROUNDS + 1):
        sent = []
        for i in range(M):
            p = w
            for x, y, _ in Local(i, r, batch).batches(2):
                meta, _ = slope(along(p, slope(p, x, y)[0], -method.alpha), x, y)
                if method.variant == "HF":
                    up, down = (slope(along(p, meta, d), x, y)[0] for d in (method.delta, -method.delta))
                    meta = {n: t - method.alpha * (up[n] - down[n]) / (2 * method.delta) for n, t in meta.items()}
                p = along(p, meta, -LR)
            sent.append(p)
        personal = [along(w, slope(w, X[i], Y[i])[0], -method.alpha) for i in range(M)]
        w = mean(sent, SHARE)
    return personal


def pfedme(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w, theta = start[0], [start[0]] * M
    for r in range(1, ROUNDS + 1):
        sent = []
        for i in range(M):
            mine = theta[i] = w
            for x, y, _ in Local(i, r, batch).batches(2):
                for _ in range(method.inner_steps):
                    g, _ = slope(theta[i], x, y)
                    theta[i] = {n: t - LR * (g[n] + method.lam * (t - mine[n])) for n, t in theta[i].items()}
                way = min(1.0, method.outer_step * LR * method.lam)
                mine = {n: t - way * (t - theta[i][n]) for n, t in mine.items()}
            sent.append(mine)
        w = {n: (1 - method.beta) * t + method.beta * mean(sent, SHARE)[n] for n, t in w.items()}
    return theta


OPTIMISATION: dict[str, Callable[[Any, list[Weights], int, Run], Served]] = {
    "fedsam": fedsam,
    "mofedsam": mofedsam,
    "fedmgda": fedmgda,
    "perfedavg": perfedavg,
    "pfedme": pfedme,
}
