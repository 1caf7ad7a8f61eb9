"""Layers that engines replace by their own, also where one layer is in several places."""

import pytest
import torch
from torch import nn

import fedfew
from fedfew.engines import Sequential
from fedfew.engines.dropout import CountedDropout, keyed, make_counted, one_pass
from fedfew.engines.stacked.batch_norm import MaskedBatchNorm, make_masked
from fedfew.models.layers import apart, replace_layers
from tests.engines.small import ENGINES, assert_close, images, trained

DATA = images(sizes=(13, 22, 7, 27), shape=(1, 4))  # in batches of 5, all but one of whose last ones are partial


class Twice(nn.Module):
    """A layer of each kind under two names: some that the stack has its own for, and some that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.between, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = self.norm_again = nn.BatchNorm1d(6)
        self.drop = self.drop_again = nn.Dropout(0.4)
        self.table = self.table_again = nn.Embedding(3, 6, padding_idx=0)
        self.scale = self.scale_again = nn.LayerNorm(6)
        self.block = self.block_again = nn.Sequential(nn.Linear(6, 6), nn.PReLU())
        self.double()

    def forward(self, x):
        x = x.flatten(1)
        tokens = x[:, :2].abs().long().clamp_max(2)
        h = self.drop(self.norm(self.into(x.double())).relu()) + self.table(tokens).tanh().sum(1)
        h = self.block_again(self.scale_again(self.block(self.scale(h))))
        return self.out(self.drop_again(self.norm_again(self.between(h)).relu()) + self.table_again(tokens).sum(1))


def test_engines_agree_where_a_layer_has_two_names():
    """Dropout must not draw from PyTorch's generator in the second place, nor rows that fill up a batch count in BatchNorm."""
    *others, one = (fedfew.train(DATA, Twice, "fedavg", rounds=2, batch_size=5, engine=cls.name, device="cpu") for cls in ENGINES)
    for other in others:
        assert_close(other.newest.server, one.newest.server)


def test_a_layer_in_two_places_becomes_two_that_share_their_state():
    module, again = apart(Twice()), Twice()
    for place in ("norm", "table", "scale", "block"):
        one, other = (getattr(module, name) for name in (place, f"{place}_again"))
        assert one is not other
        assert all(
            a is b
            for a, b in zip(one.state_dict(keep_vars=True).values(), other.state_dict(keep_vars=True).values(), strict=True)
        )
    assert module.block[0] is not module.block_again[0]
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in again.named_parameters()]
    assert list(module.state_dict()) == list(again.state_dict())
    assert module.drop is module.drop_again, "without any state there is nothing that could be left behind"


def test_one_twin_in_all_places():
    module = make_masked(make_counted(Twice()))
    assert isinstance(module.norm, MaskedBatchNorm)
    assert isinstance(module.drop, CountedDropout)
    assert module.norm is module.norm_again
    assert module.drop is module.drop_again
    assert list(module.state_dict()) == list(Twice().state_dict())
    layer, twin = nn.ReLU(), nn.Tanh()
    assert replace_layers(layer, lambda name, _: twin) is twin
    block = nn.Sequential(layer)
    replace_layers(nn.Sequential(block, block, layer), lambda name, found: twin if found is layer else None)
    assert block[0] is twin


@pytest.mark.parametrize("cls", ENGINES)
def test_a_layer_that_is_called_twice_drops_other_units(cls):
    """With the same units dropped in two places, what is left in the first is never dropped in the second."""
    seen = []

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.out = nn.Dropout(0.5), nn.Linear(4, 3)

        def forward(self, x):
            x = x.flatten(1)
            first, second = (self.drop(torch.ones_like(x)) for _ in range(2))
            if self.training and cls is Sequential:
                seen.append((first == 0) == (second == 0))
            return self.out(x * first * second)

    settings = {"rounds": 2, "batch_size": 5, "device": "cpu"}
    run, plain = (fedfew.train(DATA, Called, "fedavg", engine=name, **settings) for name in (cls.name, "sequential"))
    assert_close(run.newest.server, plain.newest.server, 1e-5)
    if seen:
        assert 0.4 < torch.cat(seen).double().mean().item() < 0.6


def test_every_pass_of_a_step_drops_the_same_units():
    """An objective may compare two models on a batch."""
    layer, x = CountedDropout(0.5, layer=1), torch.ones(4, 50)
    found = []
    with keyed(torch.tensor(5)):
        for _ in range(2):
            with one_pass():
                found.append([layer(x), layer(x)])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(*found[0])


class Listed(nn.Module):
    """Layers of every kind that engines have their own for, called by another way than by their names, and with hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.drop, self.out = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 3)
        self.each = [self.into, self.norm, self.drop, self.out]
        self.double()
        for layer in self.each:
            layer.register_forward_hook(lambda layer, inputs, output: 0.5 * output)

    def forward(self, x):
        x = x.flatten(1).double()
        for layer in self.each:
            x = layer(x)
        return x


def test_engines_agree_where_layers_are_in_a_list_and_have_hooks():
    *others, one = (trained(cls, Listed, DATA)[1] for cls in ENGINES)
    for other in others:
        assert_close(other, one, 1e-10)
