"""Float64 references of the methods with personal parts, written from the papers' formulas."""

from __future__ import annotations

from typing import Any

import torch

from fedfew.training.run import Run
from tests.methods.formulas import (
    BODY,
    CLASSES,
    EPOCHS,
    HEAD,
    LR,
    ROUNDS,
    SHARE,
    Local,
    M,
    Served,
    Weights,
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
    """FedAvg, as the model has no BatchNorm; with BatchNorm see test_fedbn.py."""
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


PERSONAL = {"fedper": fedper, "lgfedavg": lgfedavg, "fedbn": fedbn, "fedbabu": fedbabu, "fedrod": fedrod}
