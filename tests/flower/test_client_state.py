"""A client's private state on the site's disk."""

import os
import random
import stat

import torch

from fedfew.flower.client_state import ClientStates
from fedfew.stack import named_leaves


def state(value: float):
    return {"own": {"z": torch.full((2,), value), "a": torch.tensor([3])}}


def test_states_are_kept_until_the_server_no_longer_needs_them(tmp_path):
    states = ClientStates(tmp_path / "client")
    assert states.rounds() == []
    assert states.read(1) is None
    for round in (1, 2, 5, 6):
        states.write(round, state(round), keep_from=2)
    assert states.rounds() == [2, 5, 6]
    kept = states.read(5)
    assert [name for name, _ in named_leaves(kept)] == ["own/z", "own/a"]  # in the order they were written
    assert kept["own"]["z"].tolist() == [5.0, 5.0]
    states.write(5, state(7.0), keep_from=5)
    assert states.rounds() == [5, 6]
    assert states.read(5)["own"]["z"].tolist() == [7.0, 7.0]


def test_a_damaged_state_is_none(tmp_path):
    states = ClientStates(tmp_path)
    states.write(1, state(1.0), keep_from=0)
    (tmp_path / "own-000001").write_bytes(b"\x80\x04nonsense")
    assert states.read(1) is None
    (tmp_path / ".partial-1-x").write_bytes(b"half")
    states.write(2, state(2.0), keep_from=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own-000001", "own-000002"]


def test_no_damage_to_a_state_goes_unnoticed(tmp_path):
    """400 mutations: bits flipped, bytes removed, inserted or repeated, the file cut short."""
    states, draw = ClientStates(tmp_path), random.Random(0)
    states.write(1, state(1.0), keep_from=0)
    path = tmp_path / "own-000001"
    whole = path.read_bytes()
    for _ in range(400):
        at, length = draw.randrange(len(whole)), draw.randrange(1, 9)
        mutated = draw.choice(
            [
                whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :],
                whole[:at] + whole[at + length :],
                whole[:at] + draw.randbytes(length) + whole[at:],
                whole[:at] + whole[at : at + length] + whole[at:],
                whole[:at],
            ]
        )
        path.write_bytes(mutated)
        assert states.read(1) is None or mutated == whole
    path.write_bytes(whole)
    assert states.read(1)["own"]["z"].tolist() == [1.0, 1.0]


def test_nobody_else_can_read_a_site_s_state(tmp_path):
    states = ClientStates(tmp_path / "client")
    before = os.umask(0o022)
    try:
        states.write(1, state(1.0), keep_from=0)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "client").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "client" / "own-000001").stat().st_mode) == 0o600
