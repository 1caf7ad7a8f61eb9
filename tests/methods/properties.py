"""What is true of every method, whatever it does. A method that is registered gets these tests by that alone."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path

import torch

from fedfew.methods import Method, make
from fedfew.stack import leaves, named_leaves, take
from fedfew.training.run import Run
from tests.methods.small import assert_same, differ, federation, normalised, served, tensors, train

CLOSE = 2e-5  # sums in another order, in single precision, over a few rounds


@cache
def plain(method: Method) -> Run:
    """The run that others are compared with, made once."""
    return train(method)


def assert_engines_agree(method: Method, cases: list[tuple[str, int | None]]) -> None:
    """Neither the engine nor how many clients it takes at a time changes the outcome."""
    oracle = tensors(plain(method))
    for engine, chunk in cases:
        assert_same(oracle, tensors(train(method, engine=engine, chunk=chunk)), CLOSE)


def assert_follows_permutation(method: Method) -> None:
    """Clients in another order: the same results in that order."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    data = federation()
    one, other = plain(method), train(method, data.take(order))
    for column in ("served_loss", "served_accuracy", "adapted_loss", "losses"):
        expected = torch.from_numpy(one.history.arrays()[column])[:, order]
        torch.testing.assert_close(
            torch.from_numpy(other.history.arrays()[column]), expected, rtol=CLOSE, atol=CLOSE, equal_nan=True
        )
    assert_same(dict(named_leaves(take(one.state.own, order))), dict(named_leaves(other.state.own)), CLOSE)
    before, after = served(one), served(other)
    for position, client in enumerate(order.tolist()):
        assert_same(before[client], after[position], CLOSE)


def assert_resumes(method: Method, folder: Path) -> None:
    """Three rounds, a stop, three more: to the last bit what six rounds in one go give, the clients' own states included."""
    whole = train(method, rounds=6)
    train(method, rounds=3, folder=folder)
    resumed = train(method, rounds=6, folder=folder, resume=True)
    assert resumed.round == 6
    assert_same(tensors(whole), tensors(resumed))


def assert_absent_clients_rest(method: Method) -> None:
    """In a round that a client misses its own state stays as it was; in one that it joins it does not."""
    first, second = (train(method, rounds=rounds, participation=0.5) for rounds in (1, 2))
    present = ~torch.from_numpy(second.history.arrays()["losses"][-1]).isnan().all(1)
    assert 0 < present.sum() < len(present)
    if not first.state.own:
        assert differ(tensors(first), tensors(second))
        return
    moved = torch.stack(
        [(a != b).reshape(len(a), -1).any(1) for a, b in zip(leaves(first.state.own), leaves(second.state.own), strict=True)]
    ).any(0)
    assert torch.equal(moved, present)


def assert_setting_matters(method: Method, setting: str, value: object) -> None:
    """Another value, all else equal, leads elsewhere."""
    settings = method.settings()
    assert settings[setting] != value
    other = make(**(settings | {setting: value}))
    assert differ(tensors(plain(method)), tensors(train(other))), f"{method.name}: {setting} changes nothing"


def assert_settings_round_trip(method: Method) -> None:
    """What is saved of a method makes the same method."""
    again = make(**method.settings())
    assert again == method
    assert {f.name for f in fields(method)} | {"name"} == method.settings().keys()


def assert_takes_buffers(method: Method) -> None:
    """A model that keeps statistics of what it saw trains, and clients (but for those of an empty cluster) are served those."""
    run = train(method, federation((7, 12, 6, 10, 16, 8)), model=normalised)  # no batch of one
    states = served(run)
    assert all(bool(t.isfinite().all()) for state in states for t in state.values())
    assert sum(bool(state["1.running_mean"].any()) for state in states) > len(states) / 2


def assert_scores_are_of_what_is_served(method: Method) -> None:
    """The served loss is that of the model a client is handed, on its test samples."""
    data = federation()
    run = train(method, data, engine="stacked")
    for client in range(len(data)):
        x, y = data.test.of(client)
        loss = torch.nn.functional.cross_entropy(run.model_of(client)(x), y)
        torch.testing.assert_close(float(loss.detach()), float(run.history.last("served_loss")[client]), rtol=1e-4, atol=1e-5)


def assert_counts_what_travels(method: Method) -> None:
    """Bytes down are those of the message, for every client of the round alike."""
    run = train(method, rounds=1)
    present = int((~torch.from_numpy(run.history.arrays()["losses"][-1]).isnan().all(1)).sum())
    message = method.dispatch(run.state.server, torch.tensor([0]))
    size = sum(t.numel() * t.element_size() for t in leaves(message))
    assert int(run.history.arrays()["bytes_down"][-1]) == present * size
