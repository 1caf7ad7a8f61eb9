"""What happened in a run: one entry a scored round, a column a quantity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class History:
    """Columns of numbers over scored rounds, e.g. ``history.served_accuracy[S, M]``.

    ==================  ===========  ====================================================================================
    round               [S]          number of the round, from 1
    served_accuracy     [S, M]       test accuracy of the model a client would be handed now (after the round's aggregation)
    served_loss         [S, M]       its test loss
    adapted_accuracy    [S, M]       test accuracy after the round's local training (NaN: did not take part)
    adapted_loss        [S, M]       its test loss
    validation_accuracy [S, M]       of the model served, on the client's validation data (with early_stopping or keep="best")
    validation_loss     [S, M]       its loss there
    choice              [S, M]       which of the candidates served a client uses
    losses              [S, M, K]    losses that the clients reported (NaN: did not take part, or left out)
    seconds             [S]          seconds of training a round, mean since the last scored round (scoring not counted)
    bytes_up, _down     [S]          bytes sent to the server, and to the clients, in this round
    left_out            [S]          clients left out since the last scored round because their numbers were not finite
    alpha, w, g         …            the method's own, here FedFew's: [S, M], [S, M, K], [S]
    ==================  ===========  ====================================================================================
    """

    def __init__(self, columns: dict[str, list[Array]] | None = None) -> None:
        self._columns: dict[str, list[Array]] = columns or {}

    def append(self, **values: Any) -> None:
        if self._columns and values.keys() != self._columns.keys():
            raise ValueError(f"columns {sorted(values)} do not fit {sorted(self._columns)}")
        for name, value in values.items():
            self._columns.setdefault(name, []).append(np.asarray(value))

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, name: str) -> Array:
        if name not in self._columns:
            raise KeyError(f"the history has no column {name!r}; it has {', '.join(self._columns)}")
        return np.stack(self._columns[name])

    def last(self, name: str) -> Array:
        """The newest entry of a column."""
        return self._columns[name][-1]

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_") or name not in self._columns:
            raise AttributeError(f"the history has no column {name!r}; it has {', '.join(self.__dict__.get('_columns', {}))}")
        return self[name]

    def arrays(self) -> dict[str, Array]:
        return {name: self[name] for name in self._columns}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> History:
        return cls({name: list(values) for name, values in arrays.items()})
