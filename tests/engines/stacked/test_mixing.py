"""Modules that let the samples of a batch meet are not trained in a stack, where some only fill the batch up."""

from functools import partial

import pytest
import torch
from torch import nn

import fedfew
from fedfew.engines import LocalTraining, Sequential, Stacked, Threaded, UnsupportedModuleError, make
from tests.engines.small import FEDERATION, Normalised, assert_same, images, mlp, run, trained
from tests.helpers import federation


class Centred(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Averaging(nn.Linear):
    """Keeps a running mean of what it sees."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("seen", torch.zeros(inputs))

    def forward(self, x):
        if self.training:
            self.seen.lerp_(x.mean(0), 0.1)
        return super().forward(x - self.seen)


@pytest.mark.parametrize("layer", [Centred, Averaging])
def test_a_module_in_which_samples_meet_is_refused(layer):
    with pytest.raises(
        UnsupportedModuleError, match=r"cannot take \w+: .* depends on the others in the batch.*engine='sequential'"
    ):
        run(Stacked, lambda: layer(5, 3))
    assert_same(run(Threaded, lambda: layer(5, 3))[0], run(Sequential, lambda: layer(5, 3))[0])


class BySize(nn.Linear):
    def __init__(self, factor):
        super().__init__(5, 3)
        self.factor = factor

    def forward(self, x):
        return super().forward(x) * self.factor(len(x))


class Counting(BySize):
    """Counts the samples that it sees."""

    def __init__(self):
        super().__init__(lambda size: 1)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


FACTORS = {
    "size": lambda size: size / 8,
    "above": lambda size: 2 if size > 7 else 1,  # in batches of 8 the clients are left with 7, 0, 7 and 7
    "exactly": lambda size: 2 if size == 7 else 1,
    "place": lambda size: torch.arange(size)[:, None] / 8,
}


@pytest.mark.parametrize(
    "module", [*(partial(BySize, factor) for factor in FACTORS.values()), Counting], ids=[*FACTORS, "counts"]
)
def test_a_module_by_the_size_of_the_batch_or_by_places_is_refused(module):
    with pytest.raises(UnsupportedModuleError, match=r"depends on the size of the batch .* or on its place.*engine='sequential'"):
        run(Stacked, module)


def test_sizes_that_come_later_are_checked_too():
    """Also those of clients that auto does not try."""
    by_size = partial(BySize, lambda size: 2 if size == 5 else 1)
    run(Stacked, by_size)
    engine = Stacked(by_size(), LocalTraining(lr=0.1, batch_size=8), 0)
    engine.rows.check(FEDERATION.train)
    other = federation((24, 24, 8, 13))
    with pytest.raises(UnsupportedModuleError, match="5 or 8"):
        engine.rows.check(other.train)
    assert make("auto", by_size(), LocalTraining(lr=0.1, batch_size=8), 0, other.train, 2).name != "stacked"


def test_others_are_not():
    """Neither where BatchNorm, whose statistics leave out what fills a batch up, nor where the module draws random numbers."""

    class Restless(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.3, self.training))

    run(Stacked, mlp)
    trained(Stacked, Normalised, images())
    run(Stacked, lambda: Restless(5, 3))


class Turned(nn.Linear):
    """Dropout of a sequence [length, batch, features], or of the batch as it is."""

    def __init__(self, time_first):
        super().__init__(5, 3)
        self.dropout, self.time_first = nn.Dropout(0.4), time_first

    def forward(self, x):
        x = x[:, None].expand(-1, 4, -1)
        x = self.dropout(x.transpose(0, 1)).transpose(0, 1) if self.time_first else self.dropout(x)
        return super().forward(x).mean(1)


def test_dropout_of_sequences_that_begin_with_time_is_refused_and_of_others_not():
    """Units are numbered in the order in which they lie, so those of the first samples have other numbers in a larger batch."""
    with pytest.raises(UnsupportedModuleError, match=r"cannot take Turned: .* \(batch_first=True\), or use engine='sequential'"):
        run(Stacked, lambda: Turned(time_first=True))
    for time_first in (False, True):
        assert_same(*(run(engine, lambda: Turned(time_first))[0] for engine in (Threaded, Sequential)))  # noqa: B023
    assert_same(*(run(engine, lambda: Turned(time_first=False))[0] for engine in (Stacked, Sequential)))


def test_auto_takes_another_engine():
    found = fedfew.train(FEDERATION, lambda: Centred(5, 3), "fedavg", rounds=1, batch_size=8, device="cpu")
    assert found.settings["engine"] != "stacked"
