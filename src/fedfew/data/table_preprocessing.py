"""Tables as samples: numbers standardised, missing values imputed, categories one-hot; fitted on training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedfew.data.decoded import MISSING, Features, Ints
from fedfew.data.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Scale = Literal["client", "global", "none"]


@dataclass(frozen=True)
class Statistics:
    """Per number column: missing values become ``fill``; then x becomes (x − ``shift``) / ``width``."""

    fill: tuple[float, ...]
    shift: tuple[float, ...]
    width: tuple[float, ...]

    @classmethod
    def of(cls, features: Features, rows: Ints, scale: Scale, fallback: Statistics | None = None) -> Statistics:
        """Mean and standard deviation of these rows. fallback: for columns without any value there."""
        values = features.numbers[rows]
        known = np.isfinite(values)
        count = known.sum(axis=0)
        mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1)
        variance = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0) / np.maximum(count, 1)
        plain = np.array([name in features.boolean for name in features.number_names], dtype=bool) | (scale == "none")
        fill = np.where(count > 0, mean, 0.0 if fallback is None else fallback.fill)
        shift = np.where(plain, 0.0, np.where(count > 0, mean, 0.0 if fallback is None else fallback.shift))
        spread = np.sqrt(variance)
        constant = spread <= count * np.finfo(np.float64).eps * np.abs(mean)  # equal values, whose mean is rounded
        width = np.where(plain | constant, 1.0, spread)
        if fallback is not None:
            width = np.where(count > 0, width, fallback.width)
        return cls(tuple(fill.tolist()), tuple(shift.tolist()), tuple(width.tolist()))

    def apply(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return (np.where(np.isfinite(numbers), numbers, self.fill) - self.shift) / self.width


@dataclass(frozen=True)
class TablePreprocessing:
    """Numbers standardised, missing values imputed by the mean, categories one-hot; all fitted on training rows.

    Categories that did not occur in training are all zeros.
    """

    kind: ClassVar[str] = "table"
    numbers: tuple[str, ...]
    boolean: tuple[str, ...]
    categories: tuple[tuple[str, tuple[str, ...]], ...]  # column and its values in order
    scale: Scale
    overall: Statistics  # over all clients
    clients: tuple[tuple[str, Statistics], ...] = ()  # per client, with scale "client"

    @classmethod
    def fit(cls, features: Features, train: Sequence[Ints], names: Sequence[str], scale: Scale) -> TablePreprocessing:
        """train: the training rows of each client."""
        rows = np.concatenate(train)
        overall = Statistics.of(features, rows, scale)
        each = zip(names, train, strict=True) if scale == "client" else ()
        clients = tuple((name, Statistics.of(features, part, scale, overall)) for name, part in each)
        categories = []
        for name, column in zip(features.category_names, features.categories, strict=True):
            seen = sorted(column.values[code] for code in np.unique(column.codes[rows]))
            categories.append((name, tuple(seen)))
        return cls(features.number_names, features.boolean, tuple(categories), scale, overall, clients)

    @property
    def width(self) -> int:
        """Features per sample."""
        return len(self.numbers) + sum(len(values) for _, values in self.categories)

    def statistics(self, client: str | int | None = None) -> Statistics:
        """Of one client, by name or position; of all together for None, for names not known and unless scaled per client."""
        if client is None or not self.clients:
            return self.overall
        if isinstance(client, int):
            return self.clients[client][1]
        return dict(self.clients).get(client, self.overall)

    def transform(self, features: Features, client: str | int | None = None) -> NDArray[np.float32]:
        blocks = [self.statistics(client).apply(features.numbers)]
        for (_, values), column in zip(self.categories, features.categories, strict=True):
            place = {value: i for i, value in enumerate(values)}
            known = np.array([place.get(value, -1) for value in column.values], dtype=np.int64)
            blocks.append((known[column.codes][:, None] == np.arange(len(values))).astype(np.float64))
        return np.concatenate(blocks, axis=1).astype(np.float32)

    def apply(self, raw: Any, client: str | int | None = None) -> NDArray[np.float32]:
        """Model inputs of a table (pandas, polars, Arrow, or a dict of columns) that has at least the columns used."""
        table = self._table(raw)
        return self.transform(self._features(table), client)

    def for_new_client(self, raw: Any) -> TablePreprocessing:
        """The same for a client that took no part: numbers standardised as in training, by its own rows if clients were."""
        if self.scale != "client":
            return replace(self, clients=())
        features = self._features(self._table(raw))
        return replace(self, overall=Statistics.of(features, np.arange(len(features)), self.scale, self.overall), clients=())

    def _table(self, raw: Any) -> pa.Table:
        from fedfew.data.objects import arrow_table
        from fedfew.data.readers import table_columns

        table = table_columns.plain_types(arrow_table(raw))
        needed = self.numbers + tuple(name for name, _ in self.categories)
        for name in needed:
            if name not in table.column_names:
                raise DataError(f"the table has no column {name!r}; needed are {', '.join(needed)}")
        return table

    def _features(self, table: pa.Table) -> Features:
        import pyarrow as pa

        from fedfew.data.readers import table_columns

        for name in self.numbers:
            try:
                table[name].cast(pa.float64(), safe=False)
            except pa.ArrowException:  # its message quotes a value
                raise DataError(f"the column {name!r} must hold numbers, as in the training") from None
        names = tuple(name for name, _ in self.categories)
        found = table_columns.features(table, table_columns.FeatureColumns(self.numbers, names, {}))
        infinite = np.isinf(found.numbers).any(axis=0)
        if infinite.any():
            raise DataError(f"the column {self.numbers[int(infinite.argmax())]!r} holds an infinite value")
        return replace(found, boolean=self.boolean)


def missing_values(features: Features) -> dict[str, int]:
    """Missing values per column that has any."""
    counts = np.isnan(features.numbers).sum(axis=0).tolist()
    found = {name: int(count) for name, count in zip(features.number_names, counts, strict=True) if count}
    for name, column in zip(features.category_names, features.categories, strict=True):
        if MISSING in column.values:
            found[name] = int((column.codes == column.values.index(MISSING)).sum())
    return {name: count for name, count in found.items() if count}
