"""A federation: the training and test samples of all clients, and what is known of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfew import arrays, targets
from fedfew.samples import Pixels as Pixels
from fedfew.samples import Samples as Samples
from fedfew.samples import as_input as as_input
from fedfew.tasks import TaskName
from fedfew.util.spelling import counted

HTML_ROWS = 30  # clients listed in a notebook


class Preprocessing(Protocol):
    """Turns raw tables, texts or images into samples as they were in training; see :mod:`fedfew.data.preprocessing`."""

    def apply(self, raw: Any, client: str | int | None = None) -> NDArray[Any]: ...


@dataclass(frozen=True, repr=False)
class Federation:
    """M clients' training and test samples. Make one with :meth:`from_arrays` or a function of :mod:`fedfew.data`."""

    train: Samples
    test: Samples
    classes: int  # outputs of a model: classes, or for other tasks targets or labels per sample
    ids: Tensor  # what a client's random numbers are drawn from: follows the client when clients are chosen or reordered
    name: str = "arrays"
    groups: Tensor | None = None  # the true group of each client, where the data was made with groups
    val: Samples | None = None  # a third split, where one was cut
    class_names: tuple[str, ...] = ()  # one per class; "0", "1", … if not given
    vocabulary: int | None = None  # for token ids: how many there are
    about: Mapping[str, Any] = field(default_factory=dict)  # its origin: source and its hash, partition, seed, rows skipped
    client_names: tuple[str, ...] = ()  # one per client; its id if not given
    preprocessing: Preprocessing | None = None  # fitted on the training samples; None for arrays
    task: TaskName = "classification"  # what the targets are, see fedfew.tasks
    label_type: targets.LabelType | None = None  # what labels were before they became class numbers, where that is known

    def __post_init__(self) -> None:
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(map(str, range(self.classes))))
        if not self.client_names:
            object.__setattr__(self, "client_names", tuple(map(str, self.ids.tolist())))
        for setting, names, wanted in (
            ("class_names", self.class_names, self.classes),
            ("client_names", self.client_names, len(self.ids)),
        ):
            if len(names) != wanted:
                raise ValueError(f"{setting} has {len(names)} names, but {wanted} are needed")

    @classmethod
    def from_arrays(
        cls,
        train: Sequence[tuple[Any, Any]],
        test: Sequence[tuple[Any, Any]],
        *,
        classes: int | None = None,
        name: str = "arrays",
        groups: Sequence[int] | None = None,
        class_names: Sequence[str] | None = None,
        client_names: Sequence[str] | None = None,
        task: TaskName | None = None,
    ) -> Federation:
        """A federation of ``len(train)`` clients, each ``(x, y)`` in numpy or torch.

        x: one row per sample, any shape (vectors, images, token ids), the same for all clients. Floating-point features and
        booleans are stored as float32, bytes as bytes (pixels; see :func:`as_input`), other integers as int64 (token ids).
        y: integer labels in ``range(classes)``, words, or one-hot rows. classes: the largest label + 1 unless given.
        class_names: one per class; words are numbered in this order, or alphabetically if it is not given.
        task: "classification", "regression" (y holds numbers, [N] or [N, d]), "multi-label" (0 or 1, [N, labels]) or
        "language-modelling" (y holds the token ids of x themselves, −100 for padding; classes is the vocabulary's size). If not
        given, numbers that are not all whole are a regression, rows of 0 and 1 that are not one-hot are several labels per
        sample, and all else is a classification. class_names are then the names of the targets or labels.
        """
        arrays.check_pairs("train", train)
        if len(train) == 0:
            raise ValueError("train is empty: a federation needs at least one client")
        arrays.check_pairs("test", test)
        if len(train) != len(test):
            raise ValueError(f"train has {len(train)} clients, but test has {len(test)}")
        targets.check_task(task)
        given = [targets.as_array(y) for _, y in (*train, *test)]
        if task is None:
            targets.check_order([x for x, _ in (*train, *test)], given)
            task = targets.detected(given)
        label_type = None if class_names or task != "classification" else targets.label_type_of_arrays(given)
        if task == "classification":
            given, class_names = targets.numbered(given, class_names, len(train))
        parts = {
            "train": arrays.checked("train", [x for x, _ in train], given[: len(train)], task),
            "test": arrays.checked("test", [x for x, _ in test], given[len(train) :], task),
        }
        arrays.check_alike(parts)
        classes = arrays.number_of_outputs(parts, task, class_names or ()) if classes is None else classes
        arrays.check_targets(parts, task, classes)
        joined = {split: Samples.concatenate(clients) for split, clients in parts.items()}
        notes = []
        if task == "classification":
            counts = [samples.y.cpu().bincount(minlength=classes).numpy() for samples in joined.values()]
            notes = targets.not_trained(class_names or tuple(map(str, range(classes))), *counts)
        return cls(
            train=joined["train"],
            test=joined["test"],
            classes=classes,
            ids=torch.arange(len(train)),
            name=name,
            groups=None if groups is None else torch.as_tensor(groups),
            class_names=tuple(class_names or ()),
            about={"notes": notes} if notes else {},
            client_names=tuple(client_names or ()),
            task=task,
            label_type=label_type if classes <= 2 or label_type != "bool" else "int",
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def padding(self) -> int | None:
        """The token id that texts are padded with, where a tokeniser was given."""
        return getattr(self.preprocessing, "padding", None)

    def __repr__(self) -> str:
        """A summary without any sample."""
        shape = "×".join(map(str, self.shape)) or "1"
        kind = str(self.train.x.dtype).removeprefix("torch.")
        sizes = ", ".join(f"{name} {sum(counts):,} ({_range(counts)} per client)" for name, counts in self.counts().items())
        return f"<Federation {self.name!r}: {counted(len(self), 'client')}, {self.what}, samples {shape} {kind}; {sizes}>"

    @property
    def what(self) -> str:
        """What a model is to give, in words."""
        if self.task == "classification":
            return f"{self.classes} classes"
        if self.task == "language-modelling":
            return f"{self.classes} tokens ({self.task})"
        word = "target" if self.task == "regression" else "label"
        return f"{counted(self.classes, word)} ({self.task})"

    def _repr_html_(self) -> str:
        """The samples per client and split as a small table, for notebooks."""
        counts = self.counts()
        head = "".join(f"<th>{name}</th>" for name in ("client", *counts))
        rows = [
            f"<tr><td>{escape(client)}</td>{''.join(f'<td>{numbers[i]:,}</td>' for numbers in counts.values())}</tr>"
            for i, client in enumerate(self.client_names[:HTML_ROWS])
        ]
        more = len(self) - len(rows)
        if more:
            rows.append(f'<tr><td colspan="{1 + len(counts)}">and {more:,} more</td></tr>')
        return f"<p>{escape(repr(self)[1:-1])}</p><table><tr>{head}</tr>{''.join(rows)}</table>"

    @property
    def splits(self) -> dict[str, Samples]:
        """train, val (where there is one) and test."""
        return {"train": self.train} | ({} if self.val is None else {"val": self.val}) | {"test": self.test}

    def counts(self) -> dict[str, list[int]]:
        """Samples per client, by split."""
        return {name: samples.count.tolist() for name, samples in self.splits.items()}

    def take(self, clients: Sequence[int] | Tensor) -> Federation:
        """A federation of the chosen clients in that order; each keeps its identity, and so its batches."""
        at = torch.as_tensor(clients)
        return replace(
            self.with_splits(lambda samples: samples.take(at)),
            ids=self.ids[at],
            groups=None if self.groups is None else self.groups[at],
            client_names=tuple(self.client_names[i] for i in at.tolist()),
        )

    def to(self, device: torch.device | str, stream: bool = False) -> Federation:
        """On a device; with ``stream`` the features stay where they are and are moved batch by batch."""
        return self.with_splits(lambda samples: samples.to(device, stream))

    def with_splits(self, change: Callable[[Samples], Samples]) -> Federation:
        """The federation with every split changed."""
        changed: dict[str, Any] = {name: change(samples) for name, samples in self.splits.items()}
        return replace(self, **changed)

    def fingerprint(self) -> str:
        """A hash of the samples, labels and clients: identifies the data that a checkpoint belongs to. Rows that are none of the
        clients', which :meth:`take` leaves there, do not count."""
        digest = hashlib.sha256(str((self.classes, self.train.x.dtype, self.shape)).encode())
        if self.task != "classification":
            digest.update(self.task.encode())
        if self.train.pixels != "symmetric":
            digest.update(self.train.pixels.encode())
        splits = [self.train, self.test, *([] if self.val is None else [self.val])]
        for tensor in (self.ids, *(t for s in splits for t in _own(s))):
            digest.update(tensor.cpu().contiguous().numpy().data)  # no copy: memory-mapped samples may not fit
        return digest.hexdigest()


def _own(samples: Samples) -> Iterator[Tensor]:
    """Samples and targets in blocks of the clients' own rows, then where each client begins among these, and the counts."""
    used = samples.used
    first = [0, *((used[1:] != used[:-1]).nonzero()[:, 0] + 1).tolist()]  # rows of each block
    for tensor in (samples.x, samples.y):
        yield from (block for row, block in zip(first, tensor.tensor_split(first[1:]), strict=True) if used[row])
    yield (used.cumsum(0) - 1)[samples.start.cpu()]
    yield samples.count


def _range(counts: Sequence[int]) -> str:
    """4, or 4 to 5."""
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
