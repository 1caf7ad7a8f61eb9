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
        flat = part.reshape(len(part), -1).contiguous().view(torch.uint8)
        words = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8)).view(torch.int64)
        odd = random_streams.count(torch.arange(words.shape[1], device=words.device)) | 1
        found.append((words * odd).sum(1))
    return torch.cat(found)


def _equal(whole: Tensor, at: Tensor, part: Tensor) -> Tensor:
    """For each row of the part: is it that row of the whole?"""
    pairs = zip(at.split(AT_ONCE), part.split(AT_ONCE), strict=True)
    return torch.cat([(whole[a] == p).reshape(len(p), -1).all(1) for a, p in pairs])
