"""Float64 references of methods whose local steps take several gradients; see test_parity.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedfew.training.run import Run
from tests.methods.formulas import LR, ROUNDS, SHARE, Local, M, Served, Weights, X, Y, mean, slope


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
            mine = w
            for x, y, _ in Local(i, r, batch).batches(2):
                for _ in range(method.inner_steps):
                    g, _ = slope(theta[i], x, y)
                    theta[i] = {n: t - LR * (g[n] + method.lam * (t - mine[n])) for n, t in theta[i].items()}
                mine = {n: t - method.outer_step * LR * method.lam * (t - theta[i][n]) for n, t in mine.items()}
            sent.append(mine)
        w = {n: (1 - method.beta) * t + method.beta * mean(sent, SHARE)[n] for n, t in w.items()}
    return theta


OPTIMISATION: dict[str, Callable[[Any, list[Weights], int, Run], Served]] = {
    "fedsam": fedsam,
    "perfedavg": perfedavg,
    "pfedme": pfedme,
}
