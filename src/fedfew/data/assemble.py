"""From decoded data and the rows per client to a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.data import text
from fedfew.data.decoded import DecodedData, Words
from fedfew.data.errors import DataError
from fedfew.data.partition import Indices
from fedfew.data.partition_spec import PartitionSpec
from fedfew.data.split import Cut
from fedfew.federation import Federation, Pixels, Samples

VocabularyFrom = Literal["train", "all"]


def assemble(
    data: DecodedData,
    cuts: Sequence[Cut],
    spec: PartitionSpec,
    *,
    name: str,
    seed: int,
    pixels: Pixels,
    vocabulary_from: VocabularyFrom,
    about: dict[str, Any],
) -> Federation:
    """The federation of these clients. about: a record of how it was made."""
    x: NDArray[Any] | Words = data.x
    vocabulary: text.Vocabulary | None = None
    if isinstance(x, Words):
        vocabulary = text.Vocabulary.built_from(
            x, np.concatenate([c.train for c in cuts]) if vocabulary_from == "train" else None
        )
    shift = _Shift(spec, seed, len(data.class_names))
    if spec.shift == "rotation" and (isinstance(x, Words) or x.ndim < 3 or x.shape[-1] != x.shape[-2]):
        what = "texts" if isinstance(x, Words) else f"samples of shape {list(x.shape[1:])}"
        raise DataError(f"partition {spec} rotates square images, but these are {what}")

    def samples(parts: Sequence[Indices]) -> Samples:
        order = np.concatenate(parts)
        chosen = vocabulary.encode(x, order) if vocabulary is not None and isinstance(x, Words) else np.asarray(x)[order]
        labels = data.y[order]
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
        classes=len(data.class_names),
        ids=torch.arange(len(cuts)),
        name=name,
        groups=torch.arange(len(cuts)) % spec.groups if spec.shift else None,
        class_names=data.class_names,
        vocabulary=None if vocabulary is None else vocabulary.size,
        about=about,
    )


class _Shift:
    """Concept shift: each group of clients sees the data transformed differently, group 0 unchanged."""

    def __init__(self, spec: PartitionSpec, seed: int, classes: int) -> None:
        self.spec = spec
        self.permutations: list[Indices] = []
        if spec.shift == "label-permutation":
            self.permutations = _permutations(classes, spec.groups, np.random.default_rng([seed, 2]))

    def apply(self, client: int, x: NDArray[Any], y: Indices) -> None:
        """In place."""
        group = client % self.spec.groups
        if self.spec.shift == "rotation" and group:
            x[...] = np.rot90(x, group * 4 // self.spec.groups, axes=(-2, -1)).copy()
        elif self.spec.shift == "label-permutation" and group:
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
