"""A client's private state on the site's disk."""

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
    (tmp_path / "own-000001.safetensors").write_bytes(b"\x80\x04nonsense")
    assert states.read(1) is None
    (tmp_path / ".partial-1-x").write_bytes(b"half")
    states.write(2, state(2.0), keep_from=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own-000001.safetensors", "own-000002.safetensors"]
