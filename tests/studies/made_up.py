"""Results of studies that were never run: the tables of the contract, filled with plausible numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fedfew.evaluation.metrics import summarise
from fedfew.studies.store import Results

TEXT, NUMBER, COUNT = pa.string(), pa.float64(), pa.int64()
RUNS = {
    **dict.fromkeys(("study", "protocol", "column", "row", "point", "key", "status", "error"), TEXT),
    "seed": COUNT,
    **dict.fromkeys(("dataset", "partition"), TEXT),
    "clients": COUNT,
    **dict.fromkeys(("model", "method"), TEXT),
    "models": COUNT,
    "mu": NUMBER,
    **dict.fromkeys(("rounds", "local_epochs", "batch_size"), COUNT),
    "lr": NUMBER,
    **dict.fromkeys(("settings", "fedfew", "torch", "python", "code", "host", "device", "engine", "precision", "started"), TEXT),
    **dict.fromkeys(("seconds", "seconds_per_round"), NUMBER),
    "score": TEXT,
    **{
        f"{score}_{name}": NUMBER
        for score in ("served", "adapted")
        for name in ("mean", "std", "min", "max", "worst_tenth", "jain", "weighted_mean")
    },
    **dict.fromkeys(("macro_f1", "auc", "g", "entropy", "largest", "alpha_cv"), NUMBER),
    **dict.fromkeys(("models_in_use", "bytes_up", "bytes_down"), COUNT),
    "cost": TEXT,
    "packed": COUNT,
    "notes": TEXT,
}
CLIENTS = {
    "key": TEXT,
    **dict.fromkeys(("client", "train", "test", "group", "choice"), COUNT),
    **dict.fromkeys(("served_score", "adapted_score", "served_loss", "adapted_loss", "macro_f1", "auc", "alpha"), NUMBER),
    "w": pa.list_(NUMBER),
}
ROUNDS = {
    "key": TEXT,
    "round": COUNT,
    **{f"{score}_{name}": NUMBER for name in ("mean", "min", "weighted") for score in ("served", "adapted")},
    **dict.fromkeys(("g", "entropy", "largest", "alpha_cv"), NUMBER),
    "models_in_use": COUNT,
    "seconds": NUMBER,
    **dict.fromkeys(("bytes_up", "bytes_down"), COUNT),
}
COST = {
    "bytes_down": 3_514_152,
    "bytes_up": 3_514_152,
    "steps": 44.5,
    "gradient_passes": 1,
    "forward_passes": 0,
    "model_bytes": 3_514_152,
    "server_models": 1.0,
    "client_models": 0.0,
    "inference_passes": 1.0,
    "selection_passes": 0,
}


class Book:
    """Write runs into it, then ask for the results."""

    def __init__(self, study: str = "table1") -> None:
        self.study = study
        self.runs: list[dict[str, Any]] = []
        self.clients: dict[tuple[str, int], dict[str, Any]] = {}
        self.rounds: dict[tuple[str, int], dict[str, Any]] = {}

    def add(self, row: str, seed: int = 0, *, point: Mapping[str, Any] | None = None, **columns: Any) -> dict[str, Any]:
        """One planned run; columns that are not given are filled in plainly."""
        method = row.split()[0].lower()
        run = dict.fromkeys(RUNS) | {
            "study": self.study,
            "protocol": "fair",
            "column": "cifar10-dir-20",
            "row": row,
            "seed": seed,
        }
        run |= {"dataset": "cifar10", "partition": "dirichlet:0.5", "clients": 20, "model": "cnn", "method": method}
        run |= {"rounds": 2000, "local_epochs": 1, "batch_size": 50, "lr": 0.005, "status": "done", "settings": "{}"}
        if method == "fedfew":
            run |= {"models": 3, "mu": 0.01}
        own = {
            name: value for name, value in (point or {}).items() if name in RUNS and (method == "fedfew" or name[0] not in "m")
        }
        run |= own | columns | {"point": json.dumps(dict(point or {}))}
        said = [run["protocol"], run["column"], row, seed, own]
        run["key"] = columns.get("key", "-".join(map(str, said)))
        self.runs.append(run)
        return run

    def scored(self, run: dict[str, Any], served: list[float], adapted: list[float]) -> dict[str, Any]:
        """Fill in what follows from the clients' accuracies, and the clients themselves."""
        samples = list(range(10, 10 + len(served)))
        for score, values in (("served", served), ("adapted", adapted)):
            summary = summarise(values, samples)
            for name in ("mean", "std", "min", "max", "worst_tenth", "jain", "weighted_mean"):
                run[f"{score}_{name}"] = getattr(summary, name)
        for i, pair in enumerate(zip(served, adapted, strict=True)):
            row = dict.fromkeys(CLIENTS) | {
                "key": run["key"],
                "client": i,
                "train": 3 * samples[i],
                "test": samples[i],
                "choice": 0,
            }
            self.clients[run["key"], i] = row | {"served_score": pair[0], "adapted_score": pair[1]}
        run["clients"] = len(served)
        return run

    def round(self, run: Mapping[str, Any], number: int, **columns: Any) -> None:
        self.rounds[run["key"], number] = dict.fromkeys(ROUNDS) | {"key": run["key"], "round": number} | columns

    def results(self) -> Results:
        def table(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> pa.Table:
            return pa.Table.from_pylist(rows, schema=pa.schema(list(columns.items())))

        return Results(table(self.runs, RUNS), table([*self.clients.values()], CLIENTS), table([*self.rounds.values()], ROUNDS))


LEVELS = {  # plausible served and adapted accuracies
    "FedAvg": (0.61, 0.73),
    "FedProx": (0.615, 0.728),
    "FedMTL": (0.855, 0.857),
    "APFL": (0.87, 0.874),
    "Ditto": (0.857, 0.858),
    "FedRep": (0.865, 0.869),
    "FedAMP": (0.859, 0.86),
    "IFCA": (0.68, 0.742),
    "FedFew": (0.69, 0.88),
    "Local": (0.853, 0.853),
}


def plausible(
    book: Book, row: str, seed: int, *, shift: float = 0.0, clients: int = 20, scored: int = 20, **columns: Any
) -> dict[str, Any]:
    """A finished run with clients and learning curves."""
    run = book.add(row, seed, **columns)
    rng = np.random.default_rng([seed, sum(map(ord, run["key"]))])
    levels = [np.clip(level + shift + rng.normal(0, 0.006), 0.05, 0.99) for level in LEVELS[row.split()[0]]]
    spread = rng.normal(0, 0.09, clients)
    served, adapted = (np.clip(level + spread + rng.normal(0, 0.02, clients), 0.02, 1).tolist() for level in levels)
    book.scored(run, served, adapted)
    run |= {"seconds": 900.0, "seconds_per_round": 0.45, "macro_f1": 0.5, "auc": 0.9, "cost": json.dumps(COST)}
    run |= {"bytes_up": 70_000_000, "bytes_down": 70_000_000, "models_in_use": 1}
    K, mu = run["models"], run["mu"]
    if K is not None:
        _weigh(book, run, rng, K, mu, clients)
    for number in np.unique(np.linspace(1, run["rounds"], scored).astype(int)).tolist():
        t = number / run["rounds"]
        grown = 1 - 0.85 * np.exp(-5 * t)
        g = None if K is None else (0.05 + 0.03 * K) * np.exp(-3 * t) * np.exp(rng.normal(0, 0.02)) + 0.002
        book.round(
            run,
            number,
            **{f"{score}_mean": float(run[f"{score}_mean"] * grown) for score in ("served", "adapted")},
            **{f"{score}_min": float(run[f"{score}_min"] * grown) for score in ("served", "adapted")},
            **{f"{score}_weighted": float(run[f"{score}_weighted_mean"] * grown) for score in ("served", "adapted")},
            g=g,
        )
        run["g"] = g
    return run


def _weigh(book: Book, run: dict[str, Any], rng: np.random.Generator, K: int, mu: float, clients: int) -> None:
    losses = rng.uniform(0, 0.02, (clients, K))
    w = np.exp(-losses / mu)
    w /= w.sum(1, keepdims=True)
    alpha = np.exp(losses.min(1) / mu / 4)
    alpha /= alpha.sum()
    run |= {"entropy": float(-(w * np.log(w)).sum(1).mean()), "largest": float(w.max(1).mean()), "models_in_use": K}
    run["alpha_cv"] = float(alpha.std() / alpha.mean())
    for i in range(clients):
        book.clients[run["key"], i] |= {"alpha": float(alpha[i]), "w": w[i].tolist(), "choice": int(w[i].argmax())}


DATA = {
    "cifar100-pat-10": ("cifar100", "pathological:10", 10, -0.22),
    "cifar100-pat-20": ("cifar100", "pathological:10", 20, -0.26),
    "femnist-20": ("femnist", "writer", 20, 0.12),
    "cifar10-dir-10": ("cifar10", "dirichlet:0.5", 10, 0.0),
    "cifar10-dir-20": ("cifar10", "dirichlet:0.5", 20, 0.0),
    "cifar100-dir-10": ("cifar100", "dirichlet:0.5", 10, -0.4),
    "cifar100-dir-20": ("cifar100", "dirichlet:0.5", 20, -0.41),
    "tiny-dir-10": ("tiny-imagenet", "dirichlet:0.5", 10, -0.6),
    "agnews-dir-20": ("ag_news", "dirichlet:0.5", 20, 0.08),
}


def table1(seeds: int = 3, columns: tuple[str, ...] = tuple(DATA), protocols: tuple[str, ...] = ("published", "fair")) -> Book:
    """Ten methods on nine federations, but for a run that failed, one seed that did, and one that was not run."""
    book = Book("table1")
    for protocol in protocols:
        for column in columns:
            dataset, partition, clients, shift = DATA[column]
            for row in LEVELS:
                for seed in range(1 if protocol == "published" else seeds):
                    about: dict[str, Any] = {"protocol": protocol, "column": column, "dataset": dataset, "partition": partition}
                    if (row, column) == ("FedProx", "femnist-20"):
                        book.add(row, seed, status="failed", error="CUDA out of memory", **about)
                    elif (row, column) == ("Ditto", "tiny-dir-10"):
                        book.add(row, seed, status="missing", **about)
                    elif (row, column, seed) == ("APFL", "cifar10-dir-20", 2):
                        book.add(row, seed, status="failed", error="the loss became NaN in round 17", **about)
                    else:
                        plausible(book, row, seed, shift=shift, clients=clients, **about)
    return book


def sweep(axis: str, values: list[Any], seeds: int = 3, column: str = "cifar10-dir-20", study: str = "k", **more: Any) -> Book:
    """FedFew along an axis, FedAvg crossed with it too (the same runs at every point), under both protocols."""
    book = Book(study)
    for protocol in ("published", "fair"):
        for row in ("FedFew", "FedAvg"):
            for i, value in enumerate(values):
                for seed in range(1 if protocol == "published" else seeds):
                    point = {axis: value}
                    if axis == "local_epochs":
                        point["rounds"] = 2000 // value
                    about = {"protocol": protocol, "column": column, "point": point} | more
                    if row == "FedFew":
                        plausible(book, row, seed, shift=-0.004 * i, **about)
                    else:
                        plausible(book, row, seed, key=f"fedavg-{protocol}-{column}-{seed}", **about)
    return book
