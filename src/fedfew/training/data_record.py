"""What a run keeps of its data: names of clients and classes, and how raw data become samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fedfew.data import preprocessing as fitted
from fedfew.data.decoded import MISSING
from fedfew.data.readers.table_columns import column_texts
from fedfew.federation import Federation, Preprocessing
from fedfew.targets import LabelType
from fedfew.util.printable import printable

LISTED = 10  # names in a message


@dataclass(frozen=True)
class DataRecord:
    """Names, columns and preprocessing; each empty or None where the data had none."""

    client_names: tuple[str, ...] = ()  # empty: clients have only numbers
    class_names: tuple[str, ...] = ()  # empty: classes have only numbers
    client_column: str | None = None  # the column that named the clients
    label_column: str | None = None
    columns: tuple[str, ...] = ()  # those that inputs were made from
    preprocessing: Preprocessing | None = None
    label_type: LabelType | None = None  # what labels were in the data; None: not known

    @classmethod
    def of(cls, federation: Federation) -> DataRecord:
        about = federation.about
        columns: Mapping[str, Any] = about.get("columns") or {}
        column = about["client_column"] if "client_column" in about else _by(str(about.get("partition", "")))
        return cls(
            client_names=_unless_numbers(federation.client_names) if column is None else federation.client_names,
            class_names=_unless_numbers(federation.class_names),
            label_type=federation.label_type,
            client_column=column,
            label_column=next((name for name, why in columns.get("left_out", {}).items() if why == "the label"), None),
            columns=tuple(columns.get("used", ())),
            preprocessing=federation.preprocessing,
        )

    def label_columns(self, task: str) -> tuple[str, ...]:
        """The columns of the labels: one, or with several targets or labels per sample one of each."""
        if self.label_column is None:
            return ()
        several = task in ("regression", "multi-label") and self.label_column in self.class_names
        return self.class_names if several else (self.label_column,)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> DataRecord:
        kept = document.get("preprocessing")
        return cls(
            client_names=tuple(map(str, document.get("client_names", ()))),
            class_names=tuple(map(str, document.get("class_names", ()))),
            label_type=kind if (kind := document.get("label_type")) in get_args(LabelType) else None,
            client_column=document.get("client_column"),
            label_column=document.get("label_column"),
            columns=tuple(map(str, document.get("columns", ()))),
            preprocessing=None if kept is None else fitted.from_document(kept),
        )

    @cached_property
    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "client_names": list(self.client_names),
            "class_names": list(self.class_names),
            "label_type": self.label_type,
            "client_column": self.client_column,
            "label_column": self.label_column,
            "columns": list(self.columns),
            "preprocessing": None if self.preprocessing is None else fitted.to_document(self.preprocessing),
        }

    def labels(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Class numbers as labels of the type that the data had; where it is not known, names of classes, or numbers without."""
        found: NDArray[Any] = np.array(self.class_names)[numbers] if self.class_names else numbers
        if self.label_type == "int" and self.class_names:
            return np.array([int(name) for name in self.class_names])[numbers]
        if self.label_type == "bool":
            return found == "True" if self.class_names else found == 1
        return found.astype(np.str_) if self.label_type == "str" else found

    @property
    def kind(self) -> str | None:
        """Of raw data: "table", "text" or "image"; None: arrays."""
        return getattr(self.preprocessing, "kind", None)

    def client_name(self, client: int) -> str:
        """Its name, or its number where it has none."""
        return self.client_names[client] if self.client_names else str(client)

    @property
    def names_are_numbers(self) -> bool:
        """Whether the clients' names could be mistaken for their positions."""
        return bool(self.client_names) and all(name.isdecimal() for name in self.client_names)

    def client_number(self, client: int | str, clients: int) -> int:
        """Which of so many clients is meant, by its name or its number from 0."""
        if isinstance(client, str):
            if self.client_names.count(client) > 1:
                raise ValueError(f"several clients are called '{printable(client)}': give the number of the one meant")
            if client in self.client_names:
                return self.client_names.index(client)
            if self.names_are_numbers or not client.isdecimal():
                raise UnknownClientError(self._unknown(f"'{printable(client)}'", clients))
            client = int(client)
        if not 0 <= client < clients:
            raise UnknownClientError(self._unknown(str(client), clients))
        return client

    def client_numbers(self, column: Any, clients: int) -> list[int]:
        """Which of so many clients each value of a column means. Numbers are names if any client's name is a number."""
        texts, positions = column_texts(column), not any(map(_is_number, self.client_names))
        numbers = {}
        for text, plain in dict(zip(texts, map(str, column), strict=True)).items():
            earlier = EARLIER.get(text, (f"{text}.0",))
            spelled = (text, plain, *earlier)
            name = next((one for one in spelled if one in self.client_names), text)
            if name not in self.client_names and not positions:
                raise UnknownClientError(self._unknown(f"'{printable(name)}'", clients))
            numbers[text] = self.client_number(name, clients)
        return [numbers[text] for text in texts]

    def _unknown(self, client: str, clients: int) -> str:
        return (
            f"client {client} took no part in the training; there are {self.listed(clients)}. A new client chooses its model "
            "with some labelled samples: fedfew.join, 'fedfew select' or 'fedfew predict --labels'"
        )

    def listed(self, clients: int) -> str:
        """The clients that there are, for messages."""
        if not self.client_names:
            return f"clients with the numbers 0 to {clients - 1}"
        more = f", … ({clients} in all)" if clients > LISTED else ""
        return f"{', '.join(printable(name) for name in self.client_names[:LISTED])}{more}"


EARLIER = {MISSING: ("nan",), "true": ("True",), "false": ("False",)}  # an array's column was once named by str()


class UnknownClientError(ValueError):
    """No client of that name or number took part."""


def _by(partition: str) -> str | None:
    """The column of clients, in data prepared by an earlier version."""
    return partition.partition("+")[0].removeprefix("by:") if partition.startswith("by:") else None


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _unless_numbers(names: Sequence[str]) -> tuple[str, ...]:
    return () if list(names) == [str(i) for i in range(len(names))] else tuple(names)
