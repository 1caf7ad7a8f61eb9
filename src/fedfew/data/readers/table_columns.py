"""Which columns of a table are features: numbers and categories; ids, dates and constants are left out, with the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfew.data.decoded import Column, Features
from fedfew.data.errors import DataError
from fedfew.util.printable import printable, shortened

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CATEGORIES = 50  # a text column with more different values is not used as a category, unless it is named
ROWS_FOR_IDS = 20  # in smaller tables different values in all rows are no sign of an id
NUMBERS_BUT = 0.1  # the most words that are no numbers in a column that was meant to hold numbers
DOUBTFUL = 0.5  # the same for a column that is used as categories, about which a note asks
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WRITTEN_OTHERWISE = re.compile(  # 1.234,5 or 12 % or 5 mg: numbers to a reader, words to a program
    r"[-+]?\d[\d.,' ]*?\s?(?P<unit>[^\d.,' ][^\d]*)?"
)
_ID_NAME = re.compile(r"(?i:(^|[\s_\-.])(id|ids|uid|uuid|guid|mrn|key)$)|[a-z](Id|ID)$|(?i:^id[\s_\-.])")
_ID_NAMES = {"", "unnamed: 0", "index", "idx", "row", "row_number", "rownames", "patient", "subject", "participant", "name"}


@dataclass(frozen=True)
class FeatureColumns:
    """Columns by use."""

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    left_out: dict[str, str]  # column: reason

    @property
    def used(self) -> tuple[str, ...]:
        return self.numbers + self.categories


def choose(table: pa.Table, named: tuple[str, ...] | None, not_features: dict[str, str], file: str) -> FeatureColumns:
    """The feature columns of a table.

    named: exactly these, if the user names them. not_features: columns with another use (label, client, group) and which.
    """
    numbers, categories, left_out = [], [], dict(not_features)
    index = pandas_index(table)
    for name in named or table.column_names:
        if name in not_features and named is None:
            continue
        kind = _kind(table.schema.field(name).type)
        reason = None if named else _reason_to_leave_out(table, name, kind, index)
        if kind is None and named:
            raise DataError(f"{file}: the column {name!r} holds neither numbers nor words ({table.schema.field(name).type})")
        if reason is not None:
            left_out[name] = reason
        elif kind == "number":
            numbers.append(name)
        else:
            categories.append(name)
    if named is not None:
        left_out |= {name: "not named in input" for name in table.column_names if name not in named and name not in left_out}
    return FeatureColumns(tuple(numbers), tuple(categories), left_out)


def doubtful(table: pa.Table, chosen: FeatureColumns) -> tuple[str, ...]:
    """A note about columns that are used as categories, but look as if they were meant to hold numbers."""
    found = {name: _nearly_numbers(table[name], DOUBTFUL) or _written_otherwise(table[name]) for name in chosen.categories}
    listed = "; ".join(f"{name} ({reason})" for name, reason in found.items() if reason)
    return (
        (f"columns used as words, not as numbers: {listed}. Numbers need a plain form, and empty cells as gaps",)
        if listed
        else ()
    )


def features(table: pa.Table, chosen: FeatureColumns) -> Features:
    """The chosen columns; missing numbers are NaN."""
    import pyarrow as pa
    import pyarrow.types as types

    columns = [table[name].cast(pa.float64(), safe=False).to_numpy() for name in chosen.numbers]  # large integers are rounded
    numbers = np.stack(columns, axis=1) if columns else np.zeros((len(table), 0))
    boolean = tuple(name for name in chosen.numbers if types.is_boolean(table.schema.field(name).type))
    return Features(numbers, chosen.numbers, tuple(coded(table[name]) for name in chosen.categories), chosen.categories, boolean)


def texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column's values as text, as clients and categories are named."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from fedfew.data.decoded import MISSING

    return pc.fill_null(values.cast(pa.string()), MISSING)


def column_texts(values: Any) -> list[str]:
    """The same for a column of any kind (a list, an array, a series of pandas or polars, one of Arrow)."""
    import pyarrow as pa

    try:
        column = values.to_arrow() if hasattr(values, "to_arrow") else values
        if not isinstance(column, (pa.Array, pa.ChunkedArray)):
            column = pa.array(column, from_pandas=True)
        named: list[str] = texts(plain_types(pa.table({"": column}))[""]).to_pylist()
    except (pa.ArrowException, TypeError):  # of several types
        return [str(value) for value in values]
    return named


def is_plain(kind: pa.DataType) -> bool:
    """Whether values can be partitioned or grouped by."""
    import pyarrow.types as types

    number = types.is_integer(kind) or types.is_floating(kind)
    return bool(types.is_string(kind) or number or types.is_boolean(kind) or types.is_temporal(kind))


def coded(values: pa.ChunkedArray) -> Column:
    """A column as codes of its different values, as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(texts(values)).combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    return Column(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), tuple(encoded.dictionary.to_pylist()))


def plain_types(table: pa.Table) -> pa.Table:
    """Categoricals as their values, all kinds of strings and decimals as one kind, and half precision as single."""
    import pyarrow as pa
    import pyarrow.types as types

    def plain(kind: pa.DataType) -> pa.DataType:
        if types.is_dictionary(kind):
            return plain(kind.value_type)
        if types.is_decimal(kind):
            return pa.float64()
        if types.is_float16(kind):  # pyarrow computes little with it
            return pa.float32()
        string_view = getattr(types, "is_string_view", lambda _: False)
        return pa.string() if types.is_large_string(kind) or string_view(kind) else kind

    fields = [pa.field(f.name, plain(f.type)) for f in table.schema]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata))


def pandas_index(table: pa.Table) -> set[str]:
    """Columns that were the index of the data frame from which the table was written."""
    try:
        written = json.loads((table.schema.metadata or {})[b"pandas"])["index_columns"]
    except (KeyError, ValueError, TypeError):
        return set()
    return {name for name in written if isinstance(name, str)}


def _kind(kind: pa.DataType) -> str | None:
    import pyarrow.types as types

    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    return "category" if types.is_string(kind) else None


def _reason_to_leave_out(table: pa.Table, name: str, kind: str | None, index: set[str]) -> str | None:
    import pyarrow.compute as pc
    import pyarrow.types as types

    column, type_ = table[name], table.schema.field(name).type
    if name in index or name.startswith("__index_level_"):
        return "the index of a data frame"
    if name.strip().lower() in _ID_NAMES or _ID_NAME.search(name.strip()):
        return "an id by its name"
    if types.is_temporal(type_):
        return "a date or time"
    if types.is_null(type_) or column.null_count == len(column):
        return "no values"
    if kind is None:
        return f"neither numbers nor words ({type_})"
    different = pc.count_distinct(column, mode="only_valid").as_py()
    if different == 1 and column.null_count == 0:
        return "the same value in all rows"
    whole = kind == "category" or not types.is_floating(type_) or pc.all(pc.equal(column, pc.floor(column))).as_py()
    if whole and not types.is_boolean(type_) and different == len(column) - column.null_count and len(column) >= ROWS_FOR_IDS:
        return (kind == "category" and _nearly_numbers(column)) or "an id: every value is different"
    if kind == "category" and different > MOST_CATEGORIES:
        return _nearly_numbers(column) or f"{different:,} different words, more than {MOST_CATEGORIES} categories"
    return None


def _nearly_numbers(column: pa.ChunkedArray, most: float = NUMBERS_BUT) -> str | None:
    """Why a column of words is none: at most this share of them are no numbers, which are then mistakes or gaps."""
    words = [word for word in column.to_pylist() if word is not None]
    wrong = [word for word in words if not _NUMBER.fullmatch(word.strip())]
    if not 0 < len(wrong) <= most * len(words):
        return None
    return f"{len(words) - len(wrong):,} of {len(words):,} values are numbers, but not {_some(wrong)}"


def _written_otherwise(column: pa.ChunkedArray) -> str | None:
    """Why a column of words may be none: all are digits, points and commas, some with a unit, and some are no plain numbers."""
    words = [word.strip() for word in column.to_pylist() if word is not None]
    odd = [word for word in words if not _NUMBER.fullmatch(word)]
    found = [_WRITTEN_OTHERWISE.fullmatch(word) for word in words]
    if not odd or not all(found) or len({match["unit"] for match in found if match and match["unit"]}) > 1:
        return None
    return f"numbers written as {_some(odd)}"


def _some(words: Sequence[str]) -> str:
    return ", ".join(repr(shortened(printable(word))) for word in sorted(set(words))[:3])
