"""From decoded data and the rows per client to a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedfew.data import text
from fedfew.data.decoded import DecodedData, Features, Words
from fedfew.data.division import Division
from fedfew.data.errors import DataError
from fedfew.data.partition import Indices
from fedfew.data.partition_spec import PartitionSpec
from fedfew.data.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing
from fedfew.data.table_preprocessing import Scale, TablePreprocessing
from fedfew.data.tokens import Tokens
from fedfew.federation import Federation, Pixels, Samples

VocabularyFrom = Literal["train", "all"]


def assemble(
    data: DecodedData,
    division: Division,
    name: str,
    seed: int,
    pixels: Pixels,
    scale: Scale,
    vocabulary_from: VocabularyFrom,
    about: dict[str, Any],
    tokens: Tokens | None,
) -> Federation:
    """The federation of these clients, with the preprocessing fitted on their training rows. about: how it was made.

    tokens: what encoded the texts, where a tokeniser was given.
    """
    cuts, spec = division.cuts, division.spec
    train = [cut.train for cut in cuts]
    encoder = _Encoder(data, train, division.names, pixels, scale, vocabulary_from, tokens)
    shift = _Shift(spec, seed, data)

    def samples(parts: Sequence[Indices]) -> Samples:
        x = encoder.encode(parts)
        labels = data.y[np.concatenate(parts)]
        count = torch.tensor([len(part) for part in parts])
        start = count.cumsum(0) - count
        for client, (begin, length) in enumerate(zip(start.tolist(), count.tolist(), strict=True)):
            shift.apply(client, x[begin : begin + length], labels[begin : begin + length])
        return Samples(torch.from_numpy(x), torch.from_numpy(labels), start, count, int(count.max()), pixels)

    return Federation(
        train=samples(train),
        test=samples([cut.test for cut in cuts]),
        val=samples([cut.val for cut in cuts]) if len(cuts[0].val) else None,
        classes=len(data.class_names),
        ids=torch.arange(len(cuts)),
        name=name,
        groups=torch.arange(len(cuts)) % spec.groups if spec.shift else None,
        class_names=data.class_names,
        vocabulary=None if (found := tokens or encoder.vocabulary) is None else found.size,
        about=about,
        client_names=tuple(division.names),
        preprocessing=encoder.preprocessing,
        task=data.task,
        label_type=data.details.get("label_type"),
    )


class _Encoder:
    """Decoded samples to the stored ones, fitted on the clients' training rows."""

    def __init__(
        self,
        data: DecodedData,
        train: Sequence[Indices],
        client_names: Sequence[str],
        pixels: Pixels,
        scale: Scale,
        vocabulary_from: VocabularyFrom,
        tokens: Tokens | None,
    ) -> None:
        self.x = data.x
        self.vocabulary: text.Vocabulary | None = None
        self.preprocessing: Preprocessing | None = tokens
        if isinstance(self.x, Words):
            rows = np.concatenate(train) if vocabulary_from == "train" else None
            self.vocabulary = text.Vocabulary.built_from(self.x, rows)
            self.preprocessing = TextPreprocessing(self.vocabulary.words, self.vocabulary.size)
        elif isinstance(self.x, Features):
            self.preprocessing = TablePreprocessing.fit(self.x, train, client_names, scale)
        elif "depth" in data.details:
            channels, height, width = data.details["size"]
            self.preprocessing = ImagePreprocessing(
                (channels, height, width), data.details["resized"], data.details["depth"], pixels
            )

    def encode(self, parts: Sequence[Indices]) -> NDArray[Any]:
        """The rows of all clients, one client after the other."""
        if isinstance(self.x, Words):
            assert self.vocabulary is not None
            return self.vocabulary.encode(self.x, np.concatenate(parts))
        if isinstance(self.x, Features):
            assert isinstance(self.preprocessing, TablePreprocessing)
            return np.concatenate([self.preprocessing.transform(self.x.take(part), i) for i, part in enumerate(parts)])
        return self.x[np.concatenate(parts)]


class _Shift:
    """Concept shift: each group of clients sees the data transformed differently, group 0 unchanged."""

    def __init__(self, spec: PartitionSpec, seed: int, data: DecodedData) -> None:
        self.spec = spec
        self.permutations: list[Indices] = []
        if spec.shift == "label-permutation" and data.task != "classification":
            raise DataError(f"partition {spec} permutes classes, but the task is {data.task}")
        if spec.shift == "label-permutation":
            self.permutations = _permutations(len(data.class_names), spec.groups, np.random.default_rng([seed, 2]))
        if spec.shift == "rotation":
            x = data.x
            if not isinstance(x, np.ndarray):
                raise DataError(
                    f"partition {spec} rotates square images, but these are {'texts' if isinstance(x, Words) else 'tables'}"
                )
            if x.ndim < 3 or x.shape[-1] != x.shape[-2]:
                raise DataError(f"partition {spec} rotates square images, but these are samples of shape {list(x.shape[1:])}")

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
