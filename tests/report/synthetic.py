"""Histories of runs that were never made: as large as wanted, a row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedfew.training.data_record import DataRecord


class Synthetic:
    """FedFew's record after ``scored`` rounds of M clients, who find their models; a tenth of them stays away each round."""

    sites = False
    data = DataRecord()
    events: list[str] = ["round 3: left out, their loss or update is not finite: clients 7"]  # noqa: RUF012  # never changed

    def __init__(self, clients: int, scored: int, models: int = 3, seed: int = 0) -> None:
        self.clients, self.scored, self.models = clients, scored, models
        self.round, self.in_use = scored, scored - 1
        self._rng = np.random.default_rng(seed)
        self._skill = self._rng.beta(6, 2, clients)
        self._home = self._rng.integers(0, models, clients)
        self._found = self._rng.integers(0, max(1, scored // 2), clients)  # when each has found its model
        scores = ("served_accuracy", "served_loss", "adapted_accuracy", "adapted_loss", "choice", "losses")
        self.columns = frozenset((*scores, "round", "seconds", "bytes_up", "bytes_down", "left_out", "alpha", "w", "g"))
        data: dict[str, Any] = {"name": "synthetic", "clients": clients, "classes": 10, "shape": [3, 32, 32], "vocabulary": None}
        data |= {"test_samples": [50] * clients, "fingerprint": "f" * 64}
        self.settings: dict[str, Any] = {"federation": data, "method": {"name": "fedfew", "models": models, "mu": 0.01}}
        self.settings |= {
            "model": "cnn",
            "rounds": scored,
            "engine": "stacked",
            "chunk": 64,
            "fedfew": "0.1.0",
            "torch": "2.11.0",
        }

    def row(self, column: str, at: int) -> Any:
        rng = np.random.default_rng((at, len(column)))
        M, K = self.clients, self.models
        absent = np.random.default_rng(at).random(M) < 0.1
        if column == "round":
            return np.array(at + 1)
        if column == "choice":
            return np.where(at >= self._found, self._home, (self._home + 1) % K)
        if column.endswith("accuracy"):
            values = np.clip(self._skill * (1 - np.exp(-6 * (at + 1) / self.scored)) + rng.normal(0, 0.02, M), 0, 1)
            return np.where(absent & (column == "adapted_accuracy"), np.nan, values).astype(np.float32)
        if column in ("w", "losses"):
            values = rng.dirichlet(np.ones(K), M) if column == "w" else rng.random((M, K))
            values[absent] = np.nan
            return values.astype(np.float32)
        if column == "alpha":
            values = np.where(absent, np.nan, rng.gamma(5, 1, M))
            return (values / np.nansum(values)).astype(np.float32)
        return np.array({"seconds": 1.5, "bytes_up": 1e9, "bytes_down": 1e9, "left_out": 0, "g": 0.3}[column])
