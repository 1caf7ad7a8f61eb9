"""What happened in a run: one entry per scored round, one column per quantity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfew.util.spelling import counted

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]


class History:
    """Columns of numbers over scored rounds, e.g. ``history.served_accuracy[S, M]``.

    ==================  ===========  ====================================================================================
    round               [S]          number of the round, from 1
    served_accuracy     [S, M]       test accuracy of the model a client would receive now (after the round's aggregation)
    served_loss         [S, M]       its test loss
    adapted_accuracy    [S, M]       test accuracy after the round's local training (NaN: did not take part)
    adapted_loss        [S, M]       its test loss
    validation_accuracy [S, M]       of the model served, on the client's validation data (with early_stopping or keep="best")
    validation_loss     [S, M]       its loss there
    served_score, …     [S, M]       in place of accuracy, where the task is not classification: R² or micro-F1
    served_<name>       [S, M]       a metric of your own (metrics=…) of the model served
    choice              [S, M]       which of the models served a client uses; where the server decides it, which of the server's
    losses              [S, M, K]    losses that the clients reported (NaN: did not take part, or left out)
    seconds             [S]          seconds of training a round, mean since the last scored round (scoring not counted)
    bytes_up, _down     [S]          bytes sent to the server, and to the clients, in this round
    left_out            [S]          clients left out since the last scored round because their numbers were not finite
    epsilon             [S]          ε of differential privacy so far, where dp_noise is set
    confirmed           [S]          what differences between losses are multiplied by in the next round (with check_share)
    alpha, w, g         …            the method's own, here FedFew's: [S, M], [S, M, K], [S]
    ==================  ===========  ====================================================================================
    """

    client_names: tuple[str, ...] = ()  # of the M clients, where they have names

    def __init__(self, columns: dict[str, list[Array]] | None = None) -> None:
        self._columns: dict[str, list[Array]] = columns or {}

    def __repr__(self) -> str:
        return f"<History of {counted(len(self), 'scored round')}: {', '.join(self._columns) or 'no columns'}>"

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
        return np.stack(self._entries(name))

    def last(self, name: str) -> Array:
        """The newest entry of a column."""
        return self._entries(name)[-1]

    def _entries(self, name: str) -> list[Array]:
        if name not in self._columns:
            raise KeyError(f"the history has no column {name!r}; it has {', '.join(self._columns)}")
        return self._columns[name]

    def scores(self, which: str) -> Array:
        """``which`` is served, adapted or single: the task's score of every client over rounds [S, M], whatever it is."""
        return self[self.score_column(which)]

    def last_scores(self, which: str) -> Array:
        """The newest of them, [M]."""
        return self.last(self.score_column(which))

    def score_column(self, which: str) -> str:
        return f"{which}_score" if "served_score" in self._columns else f"{which}_accuracy"

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_") or name not in self._columns:
            raise AttributeError(f"the history has no column {name!r}; it has {', '.join(self.__dict__.get('_columns', {}))}")
        return self[name]

    def to_pandas(self) -> pd.DataFrame:
        """One row per scored round and client. Columns per model are numbered (``w_0``); those per round are repeated."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("history.to_pandas() needs pandas, which is not installed: pip install pandas") from error
        rounds = len(self)
        clients = self["choice"].shape[1] if rounds else 0
        names: list[Any] = list(self.client_names) or list(range(clients))
        columns: dict[str, Any] = {"round": np.repeat(self["round"], clients) if rounds else [], "client": names * rounds}
        for name, values in self.arrays().items():
            if name == "round":
                continue
            if values.ndim == 1:
                columns[name] = np.repeat(values, clients)
            elif values.ndim == 2:
                columns[name] = values.reshape(-1)
            else:
                columns |= {f"{name}_{k}": values[:, :, k].reshape(-1) for k in range(values.shape[2])}
        return pd.DataFrame(columns)

    def arrays(self) -> dict[str, Array]:
        return {name: self[name] for name in self._columns}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> History:
        return cls({name: list(values) for name, values in arrays.items()})
