"""What the runs of a study left behind."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Results:
    """A row a planned run, a row a run and client, a row a run and scored round; joined by ``key``."""

    runs: pa.Table
    clients: pa.Table
    rounds: pa.Table
