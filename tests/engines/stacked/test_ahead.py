"""What is drawn for the next round is what that round would have drawn, and is used where the same clients train again."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfew.config import LocalTraining
from fedfew.engines import Stacked
from fedfew.engines.stacked.ahead import Ahead
from fedfew.local import LocalEpochs
from fedfew.stack import tree_map
from tests.engines.small import FEDERATION, images
from tests.engines.stacked.test_captured import CapturedStack, Small

EVERYONE = FEDERATION.ids


class Drawn:
    """Passes that are words, and which of them were drawn."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def __call__(self, work):
        for epoch in range(work.first_epoch, work.first_epoch + work.epochs):
            self.drawn.append(f"round {work.round} epoch {epoch}")
            yield self.drawn[-1]


def work(number: int, **changes) -> LocalEpochs:
    plain = LocalEpochs({"w": torch.zeros(len(EVERYONE), 2, 1)}, FEDERATION.train, EVERYONE, number)
    return replace(plain, **changes)


def rounds(ahead: Ahead, works: list[LocalEpochs]) -> list[list[str]]:
    seen = []
    for one in works:
        seen.append(list(ahead.of(one)))
        ahead.draw(one)
    return seen


def test_the_first_epoch_of_the_next_round_is_drawn_once_and_early():
    passes = Drawn()
    ahead = Ahead(passes)
    seen = rounds(ahead, [work(round, epochs=2) for round in (1, 2, 3)])
    assert seen == [[f"round {r} epoch 0", f"round {r} epoch 1"] for r in (1, 2, 3)]
    assert passes.drawn == [
        *("round 1 epoch 0", "round 1 epoch 1", "round 2 epoch 0", "round 2 epoch 1"),
        *("round 3 epoch 0", "round 3 epoch 1", "round 4 epoch 0"),  # each first one before the round that needs it
    ]


@pytest.mark.parametrize(
    "second",
    [
        {"clients": EVERYONE.flip(0)},
        {"samples": replace(FEDERATION.train)},
        {"weights": torch.ones(1)},
        {"round": 7},
        {"epochs": 0},
        {"params": {"w": torch.zeros(len(EVERYONE), 3, 1)}},
    ],
    ids=lambda second: next(iter(second)),
)
def test_other_work_gets_its_own(second):
    passes, other = Drawn(), work(3, **second)
    ahead = Ahead(passes)
    rounds(ahead, [work(1), work(2)])
    before = len(passes.drawn)
    assert (
        list(ahead.of(other)) == passes.drawn[before:] == [f"round {other.round} epoch {epoch}" for epoch in range(other.epochs)]
    )


def test_two_trainings_in_a_round_do_not_mix():
    works = [work(round, first_epoch=first) for round in (1, 2, 3) for first in (0, 1)]
    assert rounds(Ahead(Drawn()), works) == [[f"round {one.round} epoch {one.first_epoch}"] for one in works]


@pytest.mark.parametrize("training", [{"augment": "crop-flip"}, {"schedule": "cosine", "rounds": 5}, {"mixup": 0.3}])
def test_buffers_filled_early_hold_what_the_round_needs(training, monkeypatch):
    """Two trainings in each round, of which the second fills the buffers that the first one's were drawn into."""
    data = images()
    settings = LocalTraining(lr=0.1, batch_size=5, **training)
    torch.manual_seed(0)
    module = Small()
    start = tree_map(lambda t: t.expand(len(data), 2, *t.shape), dict(module.state_dict()))
    found = []
    for cls in (Stacked, CapturedStack):
        engine, params = cls(module, settings, 3), start
        for round in range(1, 5):
            for first_epoch in (0, 1) if round == 3 else (0,):
                epochs = LocalEpochs(params, data.train, data.ids, round, first_epoch=first_epoch)
                params, loss = engine.train(epochs)
        found.append((params, loss))
    (plain, loss), (early, early_loss) = found
    for name, t in plain.items():
        torch.testing.assert_close(early[name], t, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(early_loss, loss, rtol=1e-6, atol=1e-7)


def test_an_epoch_begins_once():
    """In the buffers of a run in which all clients train in every round."""
    data, begun = images(), []
    engine = CapturedStack(nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), LocalTraining(lr=0.1, batch_size=5), 3)
    begin = engine._captured._begin
    engine._captured._begin = lambda space, samples, rank, one_pass: (
        begun.append(one_pass) or begin(space, samples, rank, one_pass)
    )
    params = tree_map(lambda t: t.expand(len(data), 2, *t.shape), dict(engine.module.state_dict()))
    for round in range(1, 6):
        params, _ = engine.train(LocalEpochs(params, data.train, data.ids, round))
    assert len(begun) == 6  # five, and that of a sixth round
