"""What the models of a run were trained on, and new data brought into that form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfew.data.preprocessing import ImagePreprocessing, TextPreprocessing
from fedfew.data.readers.npz import channels_first
from fedfew.data.table_preprocessing import TablePreprocessing
from fedfew.data.tokens import Tokens
from fedfew.federation import Pixels
from fedfew.tasks import CLASSIFICATION
from fedfew.training.data_record import DataRecord

KINDS = {"f": "floating-point numbers", "u1": "bytes (uint8, which are read as pixels)", "i": "whole numbers (token ids)"}
RAW = {  # what predictions take, by the kind of preprocessing
    "table": "a table: a data frame, an Arrow table or a dict of columns",
    "text": "a list of texts",
    "image": "a list of images: files, PIL images or arrays of bytes",
}


@dataclass(frozen=True)
class SampleFormat:
    """What the models were trained on."""

    shape: tuple[int, ...]
    classes: int
    pixels: Pixels = "symmetric"
    dtype: str | None = None  # of stored samples; None: not known
    task: str = CLASSIFICATION.name

    @classmethod
    def of(cls, about: Any) -> SampleFormat:
        """From what a run records of its federation, or an export of its models."""
        return cls(
            tuple(about["shape"]),
            about["classes"],
            about.get("pixels", "symmetric"),
            about.get("dtype"),
            about.get("task", CLASSIFICATION.name),
        )

    def checked(self, x: Any, where: str = "x") -> NDArray[Any]:
        """Samples as an array of the stored type, or an error that says what they should be."""
        array = channels_first(x.numpy(force=True) if isinstance(x, Tensor) else np.asarray(x))
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{where} must hold numbers, one row per sample")
        if array.ndim == 0 or array.shape[1:] != self.shape:
            raise ValueError(
                f"{where} must be samples of shape {list(self.shape)}, one row each, not {list(array.shape[1:])}"
                + (": a single sample needs one more axis, x[None]" if array.shape == self.shape else "")
            )
        wanted = None if self.dtype is None else np.dtype(self.dtype)
        if wanted is not None and wanted.kind == "f" and array.dtype.kind in "bi":
            array = array.astype(wanted)
        if wanted is not None and _kind(array.dtype) != _kind(wanted):
            given = KINDS.get(_kind(array.dtype), str(array.dtype))
            raise ValueError(f"{where} must be {KINDS.get(_kind(wanted), self.dtype)}, as in the training, not {given}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{where} contains NaN or infinite values")
        return array.astype(np.float32) if array.dtype.kind in "fb" else array


@dataclass(frozen=True)
class RawRows:
    """Raw rows, or samples that are ready."""

    raw: Any  # an Arrow table, whose preprocessing depends on the client
    ready: NDArray[Any] | None
    preprocessing: TablePreprocessing | None

    @classmethod
    def of(cls, x: Any, data: DataRecord, format: SampleFormat) -> RawRows:
        fitted = data.preprocessing
        if isinstance(fitted, TablePreprocessing) and is_raw_table(x):
            from fedfew.data.objects import arrow_table

            return cls(arrow_table(x), None, fitted)
        if isinstance(fitted, (TextPreprocessing, Tokens)):
            if isinstance(x, str):
                raise ValueError("x is one text: give a list of texts, [x]")
            texts = x if isinstance(x, (list, tuple, Tensor)) else np.asarray(x).tolist()
            if not isinstance(texts, Tensor) and all(isinstance(one, str) for one in texts):
                return cls(None, fitted.apply(list(texts)), None)
        if isinstance(fitted, ImagePreprocessing) and isinstance(x, (list, tuple)):
            return cls(None, fitted.apply(x) if x else np.zeros((0, *format.shape), np.uint8), None)
        try:
            return cls(None, format.checked(x), None)
        except ValueError as error:
            if data.kind is None:
                raise
            raise ValueError(f"{error}. Raw data of this run would be {RAW[data.kind]}") from None

    def __len__(self) -> int:
        return len(self.raw if self.ready is None else self.ready)

    def samples(self, at: NDArray[np.int64], client: str | None) -> NDArray[Any]:
        if self.ready is not None:
            return self.ready[at]
        assert self.preprocessing is not None
        return self.preprocessing.apply(self.raw.take(at), client)


def is_raw_table(x: Any) -> bool:
    """Columns by name, not an array of samples."""
    return not isinstance(x, (np.ndarray, Tensor, list, tuple))


def samples_of(x: Any, data: DataRecord, format: SampleFormat) -> NDArray[Any]:
    """Raw data or samples as samples, for no client in particular."""
    rows = RawRows.of(x, data, format)
    return rows.samples(np.arange(len(rows)), None)


def _kind(dtype: np.dtype[Any]) -> str:
    """What samples of this type become on their way into a model: see ``as_input``."""
    return "u1" if dtype == "u1" else "f" if dtype.kind == "f" else dtype.kind
