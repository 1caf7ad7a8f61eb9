"""The data of the runs of a pack on one device, so that their samples can be put together without copying any."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfew.engines.memory import too_large
from fedfew.engines.packed.members import PLACING, Member
from fedfew.engines.packed.rows import shared_rows
from fedfew.federation import Federation, Samples


def place(member: Member, federation: Federation, device: torch.device) -> Federation:
    """The federation on the device. Its features are rows of one tensor, which all runs of the pack share."""
    found: Federation = member.ask(Placement(federation, device))
    return found


@dataclass(frozen=True, eq=False)
class Placement:
    federation: Federation
    device: torch.device
    stage: int = PLACING

    @property
    def kind(self) -> Hashable:
        train = self.federation.train
        stored = train.x.shape[1:], train.x.dtype, train.x.device, train.y.shape[1:], train.y.dtype, train.pixels
        return "placement", str(self.device), stored, self.federation.val is None

    def work(self) -> int:
        return 1

    def together(self, requests: Sequence[Placement]) -> list[Federation]:
        federations = [request.federation for request in requests]
        train, test = together([f.train for f in federations]), together([f.test for f in federations])
        val = together([f.val for f in federations if f.val is not None])
        stream = too_large([train[0], test[0]], self.device)
        train, test, val = (_moved(samples, self.device, stream) for samples in (train, test, val))
        return [replace(f, train=train[i], test=test[i], val=val[i] if val else None) for i, f in enumerate(federations)]


def together(splits: Sequence[Samples]) -> list[Samples]:
    """The same samples, as rows of one tensor of features and one of labels."""
    if not splits:
        return []
    different = {(s.x.data_ptr(), s.y.data_ptr(), len(s.y)): s for s in splits}
    if len(different) == 1:  # runs on the same data
        return [replace(s, x=splits[0].x, y=splits[0].y) for s in splits]
    features = {s.x.data_ptr(): s.x for s in different.values()}
    x, rows = shared_rows(list(features.values()))
    row_of = dict(zip(features, rows, strict=True))
    row = torch.cat([_through(row_of[s.x.data_ptr()], s.row) for s in different.values()])
    first = 0
    offsets = {}
    for key, s in different.items():
        offsets[key] = first
        first += len(s.y)
    y = torch.cat([s.y for s in different.values()])
    return [replace(s, x=x, y=y, row=row, start=s.start + offsets[s.x.data_ptr(), s.y.data_ptr(), len(s.y)]) for s in splits]


def _through(row: Tensor, of_run: Tensor | None) -> Tensor:
    """Where the features of a run's samples are; of_run: where they are in the run's own tensor."""
    return row if of_run is None else row[of_run]


def _moved(splits: Sequence[Samples], device: torch.device, stream: bool) -> list[Samples]:
    """On the device; what they share is moved once."""
    moved: list[Samples] = []
    for samples in splits:
        shared = replace(samples, x=moved[0].x, y=moved[0].y, row=moved[0].row) if moved else samples
        moved.append(shared.to(device, stream))
    return moved
