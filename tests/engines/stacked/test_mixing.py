"""Modules that let the samples of a batch meet are not trained in a stack, where some only fill the batch up."""

import pytest
import torch
from torch import nn

import fedfew
from fedfew.engines import Sequential, Stacked, Threaded, UnsupportedModuleError
from tests.engines.small import FEDERATION, Normalised, assert_same, images, mlp, run, trained


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


def test_others_are_not():
    """Neither where BatchNorm, whose statistics leave out what fills a batch up, nor where the module draws random numbers."""

    class Restless(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.3, self.training))

    run(Stacked, mlp)
    trained(Stacked, Normalised, images())
    run(Stacked, lambda: Restless(5, 3))


def test_auto_takes_another_engine():
    found = fedfew.train(FEDERATION, lambda: Centred(5, 3), "fedavg", rounds=1, batch_size=8, device="cpu")
    assert found.settings["engine"] != "stacked"
