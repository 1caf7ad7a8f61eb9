"""From rows and who gets which to a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.data import text
from fedfew.data.dealing import Dealing
from fedfew.data.errors import DataError
from fedfew.data.partition import Indices
from fedfew.data.rows import Rows, Words
from fedfew.data.split import Cut
from fedfew.federation import Federation, Pixels, Samples

VocabularyFrom = Literal["train", "all"]


def federation_of(
    rows: Rows,
    cuts: Sequence[Cut],
    dealing: Dealing,
    *,
    name: str,
    seed: int,
    pixels: Pixels,
    vocabulary_from: VocabularyFrom,
    about: dict[str, Any],
) -> Federation:
    x: NDArray[Any] | Words = rows.x
    vocabulary: text.Vocabulary | None = None
    if isinstance(x, Words):
        vocabulary = text.Vocabulary.built_from(
            x, np.concatenate([c.train for c in cuts]) if vocabulary_from == "train" else None
        )
    shift = _Shift(dealing, seed, len(rows.class_names))
    if dealing.shift == "rotation" and (isinstance(x, Words) or x.ndim < 3 or x.shape[-1] != x.shape[-2]):
        what = "texts" if isinstance(x, Words) else f"samples of shape {list(x.shape[1:])}"
        raise DataError(f"partition {dealing} turns square images, but these are {what}")

    def samples(parts: Sequence[Indices]) -> Samples:
        order = np.concatenate(parts)
        chosen = vocabulary.encode(x, order) if vocabulary is not None and isinstance(x, Words) else np.asarray(x)[order]
        labels = rows.y[order]
        ends = np.cumsum([len(part) for part in parts])
        for client, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            shift.apply(client, chosen[begin:end], labels[begin:end])
        count = torch.tensor([len(part) for part in parts])
        return Samples(
            x=torch.from_numpy(chosen),
            y=torch.from_numpy(labels),
            start=count.cumsum(0) - count,
            count=count,
            longest=int(count.max()),
            pixels=pixels,
        )

    return Federation(
        train=samples([cut.train for cut in cuts]),
        test=samples([cut.test for cut in cuts]),
        val=samples([cut.val for cut in cuts]) if len(cuts[0].val) else None,
        classes=len(rows.class_names),
        ids=torch.arange(len(cuts)),
        name=name,
        groups=torch.arange(len(cuts)) % dealing.groups if dealing.shift else None,
        class_names=rows.class_names,
        vocabulary=None if vocabulary is None else vocabulary.size,
        about=about,
    )


class _Shift:
    """The same world seen differently by each group of clients; group 0 sees it as it is."""

    def __init__(self, dealing: Dealing, seed: int, classes: int) -> None:
        self.dealing = dealing
        self.permutations: list[Indices] = []
        if dealing.shift == "label-permutation":
            self.permutations = _permutations(classes, dealing.groups, np.random.default_rng([seed, 2]))

    def apply(self, client: int, x: NDArray[Any], y: Indices) -> None:
        """In place."""
        group = client % self.dealing.groups
        if self.dealing.shift == "rotation" and group:
            x[...] = np.rot90(x, group * 4 // self.dealing.groups, axes=(-2, -1)).copy()
        elif self.dealing.shift == "label-permutation" and group:
            y[...] = self.permutations[group][y]


def _permutations(classes: int, groups: int, rng: np.random.Generator) -> list[Indices]:
    """The identity and further permutations, all different."""
    found = [np.arange(classes)]
    for _ in range(1000 * groups):
        if len(found) == groups:
            return found
        drawn = rng.permutation(classes)
        if not any(np.array_equal(drawn, old) for old in found):
            found.append(drawn)
    raise ValueError(f"label-permutation:{groups}: {classes} classes cannot be permuted in {groups} different ways")
