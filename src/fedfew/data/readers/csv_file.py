"""CSV files as people have them: comma, semicolon or tab, UTF-8 or Latin-1, decimal point or comma."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedfew.data.errors import DataError
from fedfew.data.readers.size_limit import check_size

if TYPE_CHECKING:
    import pyarrow as pa

MISSING_WORDS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]
DELIMITERS = ",;\t|"
_WRONG_WIDTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")  # the part of Arrow's message that quotes no row
_DECIMAL_COMMA = r"^\s*[+-]?\d+(,\d+)?\s*$"


def read_table(path: Path, names: Callable[[str], bool]) -> tuple[pa.Table, tuple[str, ...]]:
    """The table, and what was assumed about the file. names: which columns name something (clients, patients), so that 01 and 1,
    1e3 and 1000 are different."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.types as types

    try:
        check_size(path, path.stat().st_size)
        contents = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    encoding = _encoding(contents)
    header = _header(contents, encoding)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=header.count)  # the first, a comma, if none occurs
    spaced = f"{delimiter} " in header  # as in "age, sex, outcome"
    try:
        parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        read = partial(csv.read_csv, read_options=csv.ReadOptions(encoding=encoding), parse_options=parsing)
        missing = [*MISSING_WORDS, *(f" {word}" for word in MISSING_WORDS)] if spaced else MISSING_WORDS
        options = {"strings_can_be_null": True, "null_values": missing}
        table = read(pa.BufferReader(contents), convert_options=csv.ConvertOptions(**options))
        not_words = [field.name for field in table.schema if types.is_primitive(field.type)]
        again = {name: pa.string() for name in not_words if names(name.strip())}
        if again and len(set(table.column_names)) == len(table.column_names):
            only = csv.ConvertOptions(column_types=again, include_columns=list(again), **options)
            table = _with_codes(table, read(pa.BufferReader(contents), convert_options=only))
    except pa.ArrowException as error:
        in_order = csv.ReadOptions(encoding=encoding, use_threads=False)  # so that Arrow numbers the rows
        wrong = _row_of_other_width(lambda: csv.read_csv(pa.BufferReader(contents), in_order, parsing))
        reason = wrong or ("it is empty" if "Empty" in str(error) else "its lines do not form a table")
        raise DataError(f"{path} cannot be read as CSV: {reason}") from None
    table = _trimmed(table) if spaced else table
    notes = [f"{path.name} is not UTF-8 and was read as {encoding}"] if encoding not in ("utf-8", "utf-16") else []
    if delimiter == ";":
        table, commas = _with_decimal_commas(table, names)
        notes += [f"{path.name}: commas are decimal points in {', '.join(commas)}"] if commas else []
    return table, tuple(notes)


def _row_of_other_width(read: Callable[[], pa.Table]) -> str | None:
    """Which row has more or fewer values than the header, in words."""
    import pyarrow as pa

    try:
        read()
    except pa.ArrowException as error:
        if found := _WRONG_WIDTH.search(str(error)):
            row, expected, got = found.groups()
            return f"row {int(row) - 1} below the header has {got} values, but the header has {expected}"
    return None


def _encoding(contents: bytes) -> str:
    if contents.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        try:
            contents.decode(encoding)
            return encoding
        except UnicodeDecodeError:
            continue
    return "latin-1"  # has a character for every byte


def _header(contents: bytes, encoding: str) -> str:
    """The first line but for what is in quotation marks."""
    header = contents[: 2**16].decode(encoding, errors="ignore").lstrip("\ufeff").split("\n", 1)[0]
    return re.sub(r'"[^"]*"', "", header)


def _trimmed(table: pa.Table) -> pa.Table:
    """Names and words without the blanks around them."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    for place, column in enumerate(table.columns):
        if types.is_string(column.type):
            table = table.set_column(place, table.column_names[place], pc.utf8_trim_whitespace(column))
    return table.rename_columns([name.strip() for name in table.column_names])


def _with_codes(table: pa.Table, words: pa.Table) -> pa.Table:
    """The table; in the place of columns that were taken for numbers, truth values or times their words, where these are not all
    written as programs write them (1, 1.0, 2.5, True): 01, 1E3 and 1.10 are codes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, name in enumerate(table.column_names):
        if name in words.column_names:
            written, value = pc.utf8_trim_whitespace(words[name]), table[name].cast(pa.string())
            plain = pc.or_(
                pc.equal(pc.utf8_lower(written), value), pc.equal(written, pc.binary_join_element_wise(value, ".0", ""))
            )
            table = table if pc.all(plain).as_py() in (True, None) else table.set_column(place, name, written)
    return table


def _with_decimal_commas(table: pa.Table, names: Callable[[str], bool]) -> tuple[pa.Table, list[str]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    changed = []
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if not names(name) and types.is_string(column.type) and pc.all(pc.match_substring_regex(column, _DECIMAL_COMMA)).as_py():
            numbers = pc.replace_substring(pc.utf8_trim_whitespace(column), ",", ".").cast(pa.float64())
            table = table.set_column(place, name, numbers)
            changed.append(name)
    return table, changed
