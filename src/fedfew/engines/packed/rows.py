"""Features of several federations in one tensor. Partitions of one data set consist of the same rows: each is stored once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfew import random_streams

AT_ONCE = 4096  # rows that are hashed or compared in one go


def shared_rows(parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One tensor with all rows of the parts, and where in it those of each part are."""
    whole, places = parts[0], [torch.arange(len(parts[0]), device=parts[0].device)]
    seen = hashes(whole)
    for part in parts[1:]:
        own = hashes(part)
        sorted_hashes, by_hash = seen.sort()
        at = by_hash[torch.searchsorted(sorted_hashes, own).clamp_max(len(seen) - 1)]
        known = _equal(whole, at, part)
        at[~known] = len(whole) + torch.arange(int((~known).sum()), device=at.device)
        if not known.all():
            whole, seen = torch.cat([whole, part[~known]]), torch.cat([seen, own[~known]])
        places.append(at)
    return whole, places


def hashes(rows: Tensor) -> Tensor:
    """A 64-bit number per row, the same for equal rows."""
    found = []
    for part in rows.split(AT_ONCE):
        words = _words(part)
        odd = random_streams.count(torch.arange(words.shape[1], device=words.device)) | 1
        found.append((words * odd).sum(1))
    return torch.cat(found)


def _equal(whole: Tensor, at: Tensor, part: Tensor) -> Tensor:
    """For each row of the part: is it that row of the whole, bit by bit?"""
    pairs = zip(at.split(AT_ONCE), part.split(AT_ONCE), strict=True)
    return torch.cat([(_words(whole[a]) == _words(p)).all(1) for a, p in pairs])


def _words(rows: Tensor) -> Tensor:
    """The bytes of each row as 64-bit numbers, ``[N, words]``; what is missing is 0."""
    flat = rows.reshape(len(rows), -1).contiguous().view(torch.uint8)
    missing = -flat.shape[1] % 8
    if missing or flat.storage_offset() % 8:  # words must begin at a multiple of 8 bytes
        flat = torch.nn.functional.pad(flat, (0, missing)).clone()
    return flat.view(torch.int64)
