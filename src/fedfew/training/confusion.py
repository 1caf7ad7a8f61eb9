"""How many test samples of which class are predicted as which, per client."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedfew.training.run_files import CONFUSION
from fedfew.util.files import DamagedFileError, write_atomically

if TYPE_CHECKING:
    from fedfew.federation import Federation
    from fedfew.training.prediction import Predictor

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Confusion:
    """Counts of M clients, as a list: few pairs of classes occur at a client."""

    entries: Counts  # [E, 4]: client, class, predicted class, samples
    clients: int
    classes: int

    @classmethod
    def of(cls, pairs: list[tuple[ArrayLike, ArrayLike]], classes: int) -> Confusion:
        """pairs: labels and predicted classes of each client."""
        rows = []
        for client, (labels, predicted) in enumerate(pairs):
            codes = np.asarray(labels, dtype=np.int64) * classes + np.asarray(predicted, dtype=np.int64)
            found, counts = np.unique(codes, return_counts=True)
            rows.append(np.stack([np.full(len(found), client), found // classes, found % classes, counts], axis=1))
        return cls(np.concatenate(rows).astype(np.int64), len(pairs), classes)

    def matrix(self, client: int | None = None) -> Counts:
        """``[classes, classes]``: samples of the class in the row predicted as the class in the column; None: of all clients."""
        chosen = self.entries if client is None else self.entries[self.entries[:, 0] == client]
        counts = np.zeros((self.classes, self.classes), dtype=np.int64)
        np.add.at(counts, (chosen[:, 1], chosen[:, 2]), chosen[:, 3])
        return counts

    def write(self, folder: Path, round: int) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, entries=self.entries, size=[self.clients, self.classes], round=round)
        write_atomically(folder / CONFUSION, file.getvalue())


def counted(source: Predictor, federation: Federation) -> Confusion:
    """By what each client uses, on its test samples."""
    pairs: list[tuple[Any, Any]] = []
    for client in range(len(federation)):
        x, y = federation.test.of(client)
        pairs.append((y.cpu().numpy(), source.predict_proba(x.cpu(), client).argmax(1)))
    return Confusion.of(pairs, federation.classes)


def read(folder: Path, round: int) -> Confusion | None:
    """What was counted when the run ended; None where the run went on since, or nothing was."""
    path = folder / CONFUSION
    try:
        with np.load(path, allow_pickle=False) as file:
            if int(file["round"]) != round:
                return None
            entries, (clients, classes) = file["entries"].astype(np.int64), file["size"].tolist()
        if (
            entries.ndim != 2
            or entries.shape[1] != 4
            or (entries < 0).any()
            or (entries[:, :3] >= [clients, classes, classes]).any()
        ):
            raise ValueError("its numbers fit no confusion matrix")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from None
    return Confusion(entries, clients, classes)
