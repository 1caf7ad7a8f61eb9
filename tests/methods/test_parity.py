"""All methods, as they are by default and as they were published, against float64 references.

The references are written from the formulas of the papers, with a two-layer network differentiated by hand, and share nothing
with the library but two things: initial weights, and the order in which a client sees its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedfew.methods import METHODS, FedFew, Method
from fedfew.training.run import Run
from tests.methods.clustering_references import CLUSTERING
from tests.methods.few_models_references import FEW_MODELS
from tests.methods.formulas import (
    BODY,
    DATA,
    EPOCHS,
    HEAD,
    LR,
    ROUNDS,
    SEED,
    SHARE,
    Double,
    K,
    Local,
    M,
    N,
    Served,
    Weights,
    loss,
    mean,
    slope,
    weights,
)
from tests.methods.optimisation_references import OPTIMISATION
from tests.methods.personal_references import PERSONAL
from tests.methods.small import train
from tests.methods.tiers import BY_REFERENCE, tiered


def local(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    models = [start[0]] * M
    for r in range(1, ROUNDS + 1):
        models = [Local(i, r, batch).sgd(p)[0] for i, p in enumerate(models)]
    return models


def fedavg(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """FedProx too: min F_i(w) + μ/2·‖w − w^t‖², then the mean by samples."""
    w = start[0]
    for r in range(1, ROUNDS + 1):
        w = mean([Local(i, r, batch).sgd(w, pull=getattr(method, "mu", 0.0), to=w)[0] for i in range(M)], SHARE)
    return [w] * M


def steps(i: int, batch: int) -> int:
    return EPOCHS * -(-N[i] // batch)


def change(a: Weights, b: Weights, by: float = 1.0) -> Weights:
    """by·(a − b)"""
    return {n: by * (a[n] - b[n]) for n in a}


def plus(a: Weights, b: Weights, by: float = 1.0) -> Weights:
    return {n: a[n] + by * b[n] for n in a}


def scaffold(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """Option II; all clients take part, so c is the mean of the c_i."""
    x, c = start[0], [change(start[0], start[0])] * M
    for r in range(1, ROUNDS + 1):
        middle = mean(c, SHARE)
        y = [Local(i, r, batch).sgd(x, shift=change(middle, c[i]))[0] for i in range(M)]
        c = [plus(change(c[i], middle), change(x, y[i]), 1 / (steps(i, batch) * LR)) for i in range(M)]
        x = mean(y, SHARE)
    return [x] * M


def feddyn(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    a, w, g, h = method.alpha, start[0], [change(start[0], start[0])] * M, change(start[0], start[0])
    for r in range(1, ROUNDS + 1):
        theta = [Local(i, r, batch).sgd(w, pull=a, to=w, shift={n: -t for n, t in g[i].items()})[0] for i in range(M)]
        g = [plus(g[i], change(theta[i], w), -a) for i in range(M)]
        h = plus(h, change(mean(theta, SHARE), w), -a)
        w = plus(mean(theta, SHARE), h, -1 / a)
    return [w] * M


def fednova(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w = start[0]
    for r in range(1, ROUNDS + 1):
        d = [change(Local(i, r, batch).sgd(w)[0], w, 1 / steps(i, batch)) for i in range(M)]
        w = plus(w, mean(d, SHARE), sum(SHARE[i] * steps(i, batch) for i in range(M)))
    return [w] * M


def qfedavg(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """w − Σ Δ_k / Σ h_k with Δw_k = (w − w_k)/lr, Δ_k = F^q·Δw_k and h_k = q·F^(q−1)·‖Δw_k‖² + F^q/lr."""
    w, q = start[0], method.q
    for r in range(1, ROUNDS + 1):
        delta = [change(w, Local(i, r, batch).sgd(w)[0], 1 / LR) for i in range(M)]
        f = [loss(w, i) for i in range(M)]
        size = [sum(float(t.square().sum()) for t in d.values()) for d in delta]
        h = sum(SHARE[i] * (q * f[i] ** (q - 1) * size[i] + f[i] ** q / LR) for i in range(M))
        w = {n: w[n] - sum(SHARE[i] * f[i] ** q * delta[i][n] for i in range(M)) / h for n in w}
    return [w] * M


def afl(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """The projection by bisection: entries less a common number, or 0, sum to one."""
    w, lam = start[0], [1 / M] * M
    for r in range(1, ROUNDS + 1):
        up = [lam[i] + method.step / M * loss(w, i) for i in range(M)]
        w = mean([Local(i, r, batch).sgd(w)[0] for i in range(M)], lam)
        low, high = min(up) - 1, max(up)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(max(0.0, v - middle) for v in up) > 1 else (low, middle)
        lam = [max(0.0, v - low) for v in up]
    return [w] * M


def ditto(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w, v = start[0], [start[0]] * M
    epochs = method.personal_epochs or EPOCHS
    for r in range(1, ROUNDS + 1):
        v = [Local(i, r, batch).sgd(v[i], epochs, pull=method.lam, to=w)[0] for i in range(M)]
        w = mean([Local(i, r, batch).sgd(w)[0] for i in range(M)], SHARE)
    return v


def fedmtl(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    """F_i(w_i) + λ/2·‖w_i − w̄‖² with the mean of the round before."""
    w = [start[0]] * M
    for r in range(1, ROUNDS + 1):
        middle = mean(w, [1.0] * M)
        w = [Local(i, r, batch).sgd(w[i], pull=method.lam, to=middle)[0] for i in range(M)]
    return w


def fedrep(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    body, heads = start[0], [start[0]] * M
    head_epochs, body_epochs = method.head_epochs or EPOCHS, method.body_epochs or EPOCHS
    for r in range(1, ROUNDS + 1):
        sent = []
        for i in range(M):
            mine = {n: heads[i][n] if n in HEAD else body[n] for n in body}
            heads[i], _ = Local(i, r, batch).sgd(mine, head_epochs, only=HEAD)
            sent.append(Local(i, r, batch).sgd(heads[i], body_epochs, first=head_epochs, only=BODY)[0])
        body = mean(sent, SHARE)
    return [{n: heads[i][n] if n in HEAD else body[n] for n in body} for i in range(M)]


def apfl(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w, v, alpha = start[0], [start[0]] * M, [method.alpha] * M
    for r in range(1, ROUNDS + 1):
        sent = []
        for i in range(M):
            mine, own, a = w, v[i], alpha[i]
            for x, y, _ in Local(i, r, batch).batches(EPOCHS):
                of_w, _ = slope(mine, x, y)
                if method.mixing == "step":  # Algorithm 1
                    of_mix, _ = slope({n: a * own[n] + (1 - a) * mine[n] for n in own}, x, y)
                    of_a = sum(float(((own[n] - mine[n]) * of_mix[n]).sum()) for n in own)
                    own = {n: own[n] - LR * a * of_mix[n] for n in own}
                    mine = {n: mine[n] - LR * of_w[n] for n in mine}
                else:  # both models step by themselves; α's gradient is taken at v − w after the steps
                    of_v, _ = slope(own, x, y)
                    own, mine = {n: own[n] - LR * of_v[n] for n in own}, {n: mine[n] - LR * of_w[n] for n in mine}
                    mixed = {n: a * of_v[n] + (1 - a) * of_w[n] for n in own}
                    of_a = sum(float(((own[n] - mine[n]) * mixed[n]).sum()) for n in own) + 0.02 * a
                a = min(1.0, max(0.0, a - LR * of_a))
            v[i] = own if method.mixing == "step" else {n: a * own[n] + (1 - a) * mine[n] for n in own}
            alpha[i] = a
            sent.append(mine)
        w = mean(sent, SHARE)
    if method.mixing == "round":
        return v
    return [{n: alpha[i] * v[i][n] + (1 - alpha[i]) * w[n] for n in w} for i in range(M)]


def fedamp(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    w = [start[0]] * M
    for r in range(1, ROUNDS + 1):
        apart = [[sum(float((w[i][n] - w[j][n]).square().sum()) for n in w[i]) for j in range(M)] for i in range(M)]
        pairs = [apart[i][j] for i in range(M) for j in range(M) if i != j]
        unit = max(sum(pairs) / len(pairs), 1e-300) if method.unit == "mean" else 1.0
        new = []
        for i in range(M):
            xi = [method.alpha / method.sigma * math.exp(-d / (method.sigma * unit)) for d in apart[i]]
            xi[i] = 0.0
            xi = [value / max(1.0, sum(xi)) for value in xi]
            xi[i] = 1.0 - sum(xi)
            cloud = {n: sum(xi[j] * w[j][n] for j in range(M)) for n in w[i]}
            begin = cloud if method.start == "cloud" else w[i]
            new.append(Local(i, r, batch).sgd(begin, pull=method.lam / method.alpha, to=cloud)[0])
        w = new
    return w


def ifca(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    models = [start[k if method.init_models == "distinct" else 0] for k in range(K)]
    for r in range(1, ROUNDS + 1):
        if r == 1 and method.ties == "random":  # which of equals is chance; that all are joined is tested elsewhere
            choice = run.history["losses"][0].argmin(1).tolist()
            assert len(set(choice)) > 1
        else:
            choice = [min(range(K), key=lambda k, i=i: loss(models[k], i)) for i in range(M)]
        trained = [Local(i, r, batch).sgd(models[choice[i]])[0] for i in range(M)]
        for k in set(choice):
            joined = [i for i in range(M) if choice[i] == k]
            models[k] = mean([trained[i] for i in joined], [SHARE[i] for i in joined])
    return [min(models, key=lambda p, i=i: loss(p, i)) for i in range(M)]


def fedfew(method: Any, start: list[Weights], batch: int, run: Run) -> Served:
    models = [start[k if method.init_models == "distinct" else 0] for k in range(K)]
    for r in range(1, ROUNDS + 1):
        trained = [[Local(i, r, batch).sgd(models[k], model=k) for k in range(K)] for i in range(M)]
        losses = torch.tensor([[trained[i][k][1] for k in range(K)] for i in range(M)], dtype=torch.float64)
        share = torch.tensor(SHARE, dtype=torch.float64)
        e = torch.exp(-(losses if method.scale_free else share[:, None] * losses) / method.mu)
        worst = (share if method.scale_free else 1.0) / e.sum(1)
        weight = (worst / worst.sum())[:, None] * e / e.sum(1, keepdim=True)  # α_i·w[i, k]
        if method.normalise:
            weight = weight / weight.sum(0)
        models = [
            {n: t + sum(weight[i, k] * (trained[i][k][0][n] - t) for i in range(M)) for n, t in models[k].items()}
            for k in range(K)
        ]
    return [min(models, key=lambda p, i=i: loss(p, i)) for i in range(M)]


REFERENCES: dict[str, Callable[[Any, list[Weights], int, Run], Served]] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedavg,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fednova": fednova,
    "qfedavg": qfedavg,
    "afl": afl,
    "fedmtl": fedmtl,
    "apfl": apfl,
    "ditto": ditto,
    "fedrep": fedrep,
    "fedamp": fedamp,
    "ifca": ifca,
    "fedfew": fedfew,
    **PERSONAL,
    **FEW_MODELS,
    **CLUSTERING,
    **OPTIMISATION,
}
# Of weights of order one, after three rounds. In the stack a sample's share of its batch, 1/b, is kept in single precision.
TOLERANCE = {"sequential": 1e-9, "stacked": 1e-6}
BY_LOSSES = {"qfedavg", "fedfomo", "afl"}  # weights are made of losses of received models, which are reported in single precision


def settings(batch: int) -> dict[str, Any]:
    plain = {"momentum": 0.0, "participation": 1.0, "rounds": ROUNDS, "local_epochs": EPOCHS}
    return plain | {"batch_size": batch, "lr": LR, "seed": SEED, "model": Double}


@pytest.fixture(scope="module")
def start() -> list[Weights]:
    still = train(FedFew(models=K), DATA, **(settings(100) | {"lr": 1e-30, "rounds": 1}))
    return [weights(model) for model in still.models]


PRESETS = [(name, published) for name, cls in METHODS.items() for published in (False, True)[: 1 + (cls.as_published() != cls())]]


@pytest.mark.parametrize(("name", "published"), tiered(PRESETS))
def test_agrees_with_its_reference(name: str, published: bool, start: list[Weights]) -> None:
    assert_agrees(name, published, 4, "sequential", start)


@pytest.mark.parametrize("name", sorted(BY_REFERENCE))
def test_agrees_with_its_reference_in_whole_batches(name: str, start: list[Weights]) -> None:
    assert_agrees(name, False, 100, "sequential", start)


@pytest.mark.parametrize(("batch", "engine"), [(100, "sequential"), (4, "stacked")])
@pytest.mark.parametrize(("name", "published"), tiered(PRESETS))
def test_agrees_with_its_reference_elsewhere(name: str, published: bool, batch: int, engine: str, start: list[Weights]) -> None:
    """batch 100: every epoch is one step on all samples."""
    assert_agrees(name, published, batch, engine, start)


def assert_agrees(name: str, published: bool, batch: int, engine: str, start: list[Weights]) -> None:
    if name not in REFERENCES:
        pytest.skip("a method registered by another test")
    cls = METHODS[name]
    method: Method = cls.as_published() if published else cls()
    run = train(method, DATA, **(settings(batch) | {"engine": engine}))
    expected = REFERENCES[name](method, start, batch, run)
    moved = max(float((expected[0].get(n, expected[0].get(f"{n} of 0")) - t).abs().max()) for n, t in start[0].items())
    assert moved > 0.01  # there is something to agree on
    precision = "stacked" if name in BY_LOSSES else engine
    for i in range(M):
        found = weights(run.model_of(i))
        for n, value in expected[i].items():
            close = TOLERANCE["stacked" if n == "log_weights" else precision]  # a mixture is served in single precision
            torch.testing.assert_close(found[n], value, rtol=close, atol=close, msg=lambda m, i=i, n=n: f"client {i}, {n}: {m}")


def test_there_is_a_reference_for_every_method_of_the_library() -> None:
    ours = {name for name, cls in METHODS.items() if cls.__module__.startswith("fedfew.")}
    assert ours == REFERENCES.keys()
