"""An engine at one precision, set up to train rounds of a workload and to be timed."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from fedfew import engines
from fedfew.bench import machine
from fedfew.bench.workloads import SEED, Workload
from fedfew.config import LocalTraining, Precision
from fedfew.engines.choice import ENGINES
from fedfew.engines.memory import clients_that_fit
from fedfew.federation import Samples
from fedfew.local import LocalEpochs
from fedfew.stack import Tree, named_leaves, stack, take, to, tree_map
from fedfew.util.spelling import unknown

ORACLE_ENGINE = "sequential"
PLAIN: Precision = "fp32"


@dataclass(frozen=True)
class Variant:
    """An engine and its precision."""

    engine: str
    precision: Precision = PLAIN

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}"


ORACLE = Variant(ORACLE_ENGINE)


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """The precisions that the engines know on this device; a CPU has fp32 alone."""
    return get_args(Precision) if device.type == "cuda" else (PLAIN,)


def variants(device: torch.device, engine: str | None, precision: str | None) -> list[Variant]:
    """All variants on this device, or those of one engine or precision; first the oracle, which the others are compared with."""
    if engine is not None and engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if precision is not None and precision not in precisions(device):
        raise ValueError(f"precision must be {' or '.join(precisions(device))} on this device, not {precision!r}")
    on_device = [name for name in ENGINES if device.type == "cpu" or name != "threaded"]  # threaded: one thread per core
    chosen_engines = on_device if engine is None else [engine]
    chosen_precisions = [p for p in precisions(device) if precision in (None, p)]
    every = [Variant(e, p) for p in chosen_precisions for e in sorted(chosen_engines, key=lambda e: e != ORACLE_ENGINE)]
    return [ORACLE, *(variant for variant in every if variant != ORACLE)]


class TimedEngine:
    """An engine with its samples and initial models in place."""

    def __init__(self, workload: Workload, samples: Samples, variant: Variant) -> None:
        self.variant = variant
        self.device = samples.y.device
        self._samples = samples
        module = workload.module().to(self.device)
        state: Tree = dict(module.state_dict())
        self._initial = tree_map(lambda t: t.detach().clone()[None, None], state)
        training = LocalTraining(workload.lr, workload.batch_size, precision=variant.precision)
        self._engine = engines.make(variant.engine, module, training, SEED, samples, workload.models)
        self.models = workload.models
        self.epochs = workload.local_epochs
        self.chunk = clients_that_fit(self._engine, samples, workload.models)
        self.clients = len(samples.count)  # that a round trains: the first so many
        self._rounds = itertools.count(1)  # of rounds that follow each other an engine draws orders ahead

    def fit_into(self, seconds: float) -> None:
        """Train fewer clients where all of them, one after the other, would take longer. The first client is timed."""
        everyone, self.clients = self.clients, 1
        self.round()  # loads what is loaded lazily
        whole = self.seconds()
        shares = self._samples.count.cumsum(0) / self._samples.count.sum()
        self.clients = everyone if whole <= seconds else max(1, int((shares * whole <= seconds).sum()))

    def round(self, keep: bool = False) -> Tree:
        """The clients' local epochs, as many at a time as in training. keep: return the trained stack [C, K, …] of round 0."""
        kept = []
        number = 0 if keep else next(self._rounds)
        for clients in torch.arange(self.clients).split(self.chunk):
            shape = len(clients), self.models
            params = tree_map(lambda t, shape=shape: t.expand(*shape, *t.shape[2:]), self._initial)
            trained, _ = self._engine.train(LocalEpochs(params, self._samples.take(clients), clients, number, epochs=self.epochs))
            if keep:
                kept += [to(take(trained, i), "cpu") for i in range(len(clients))]
        return stack(kept) if keep else {}

    def seconds(self) -> float:
        """Seconds of one round; extrapolated by samples where only some of the clients are trained."""
        machine.wait(self.device)
        begin = time.perf_counter()
        with self._engine.within_a_round():
            self.round()
        machine.wait(self.device)
        return (time.perf_counter() - begin) / self.share

    @property
    def share(self) -> float:
        """Fraction of all samples that a round trains on."""
        count = self._samples.count
        return float(count[: self.clients].sum() / count.sum())

    def difference(self, trained: Tree, oracle: Tree) -> float:
        """Distance between two variants' parameters after a round, relative to how far the oracle moved them (worst tensor).

        Norms over all replicas of a tensor: where rounding flips a ReLU, single entries differ by much, and rightly so. Only
        the clients that both have trained are compared.
        """
        initial = dict(named_leaves(to(self._initial, "cpu")))
        right = dict(named_leaves(oracle))
        worst = 0.0
        for path, tensor in named_leaves(trained):
            both = min(len(tensor), len(right[path]))
            moved = _distance(right[path][:both], initial[path])
            apart = _distance(tensor[:both], right[path][:both])
            worst = max(worst, apart / moved if moved else apart)
        return worst


def _distance(stack: Tensor, other: Tensor) -> float:
    """Between two stacks [C, K, …], or a stack and one model: client by client, since 60 TextCNNs are a billion numbers."""
    norms = [
        torch.linalg.vector_norm(a.float() - b.float(), dtype=torch.float64)
        for a, b in zip(stack, other.expand_as(stack), strict=True)
    ]
    return float(torch.linalg.vector_norm(torch.stack(norms)))
