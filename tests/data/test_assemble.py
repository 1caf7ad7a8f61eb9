"""Concept shift, and what cannot be shifted."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfew.data import DataError, load


def test_text_cannot_be_turned(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"word{i},{i % 2}\n" for i in range(20)))
    with pytest.raises(DataError, match="rotates square images, but these are texts"):
        load(tmp_path / "a.csv", clients=2, partition="rotation")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path / "a.csv", clients=2, partition="label-permutation:2").groups is not None


def test_rotation_turns_whole_clients() -> None:
    plain, turned = (load("digits", clients=8, partition=p) for p in ("iid", "rotation"))
    for i in range(8):
        a, b = plain.train.of(i)[0], turned.train.of(i)[0]
        assert torch.equal(torch.rot90(a, i % 4, (2, 3)), b)
        assert torch.equal(plain.test.of(i)[1], turned.test.of(i)[1])
    assert turned.groups is not None
    assert turned.groups.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    half = load("digits", clients=4, partition="rotation:2")
    assert torch.equal(torch.rot90(load("digits", clients=4, partition="iid").train.of(1)[0], 2, (2, 3)), half.train.of(1)[0])


def test_label_permutation_is_one_a_group() -> None:
    plain, shifted = (load("digits", clients=6, partition=p) for p in ("dirichlet:1", "dirichlet:1+label-permutation:3"))
    assert torch.equal(plain.train.x, shifted.train.x)
    maps = []
    for i in range(6):
        pairs = {
            (int(a), int(b))
            for s, t in ((plain.train, shifted.train), (plain.test, shifted.test))
            for a, b in zip(s.of(i)[1], t.of(i)[1], strict=True)
        }
        assert len({a for a, _ in pairs}) == len(pairs) == len({b for _, b in pairs})
        maps.append(dict(pairs))
    assert all(a == b for a, b in maps[0].items())
    for i in range(3):
        both = maps[i].keys() & maps[i + 3].keys()
        assert all(maps[i][a] == maps[i + 3][a] for a in both)
    assert any(maps[1][a] != a for a in maps[1])


def test_two_classes_have_two_orders() -> None:
    from fedfew.data.assemble import _permutations

    assert len(_permutations(2, 2, np.random.default_rng(0))) == 2
    with pytest.raises(ValueError, match="2 classes cannot be permuted in 3 different ways"):
        _permutations(2, 3, np.random.default_rng(0))
