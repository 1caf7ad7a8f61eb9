"""Features of several federations, each row once."""

from __future__ import annotations

import pytest
import torch

from fedfew.engines.packed import placing, rows
from fedfew.federation import Samples


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32, torch.int64])
def test_a_row_that_several_parts_hold_is_stored_once(kind):
    data = torch.randint(0, 200, (9, 3, 5), generator=torch.Generator().manual_seed(0)).to(kind)
    parts = [data[:6], data[[5, 0, 3, 2]], data[[8, 1, 6]]]
    whole, places = rows.shared_rows(parts)
    assert len(whole) == 8  # row 7 is in no part
    assert all(torch.equal(whole[at], part) for part, at in zip(parts, places, strict=True))


def test_rows_that_begin_anywhere_in_memory():
    part = torch.arange(17, dtype=torch.uint8)[1:].reshape(2, 8)
    whole, places = rows.shared_rows([part, part.flip(0)])
    assert torch.equal(whole, part)
    assert places[1].tolist() == [1, 0]


def test_rows_of_the_same_hash_are_compared(monkeypatch):
    monkeypatch.setattr(rows, "hashes", lambda part: torch.zeros(len(part), dtype=torch.int64))
    parts = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [1.0]])]
    whole, places = rows.shared_rows(parts)
    assert all(torch.equal(whole[at], part) for part, at in zip(parts, places, strict=True))


def test_partitions_of_the_same_rows_share_them_and_keep_their_own_labels():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    count = torch.tensor([2, 4])
    first = Samples(x, y, torch.tensor([0, 2]), count, 4)
    second = Samples(x[order], 10 + y[order], torch.tensor([4, 0]), count, 4)
    one, two, again = placing.together([first, second, first])
    assert one.x is two.x
    assert one.y is two.y
    assert len(one.x) == 6
    for placed, plain in ((one, first), (two, second), (again, first)):
        for client in range(2):
            for ours, theirs in zip(placed.of(client), plain.of(client), strict=True):
                assert torch.equal(ours, theirs)
            assert torch.equal(placed.inputs(placed.rows(client)), plain.of(client)[0])


def test_runs_on_the_same_data_need_no_other_rows():
    samples = Samples(torch.zeros(3, 2), torch.zeros(3), torch.tensor([0]), torch.tensor([3]), 3)
    found = placing.together([samples, samples])
    assert found[0].x is samples.x
    assert found[1].row is None
