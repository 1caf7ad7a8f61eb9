"""Dropout from a counter: the same masks in every engine."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.engines.dropout import KINDS, CountedAttention, CountedDropout, keyed, make_counted
from tests.engines.small import ENGINES, assert_close, assert_same, images, mlp, run, trained

LAYERS = [layer for layer in KINDS if layer is not nn.Dropout]
INPUTS = {nn.Dropout1d: (50, 40, 3), nn.Dropout3d: (50, 40, 2, 3, 2)}  # 50 samples of 40 channels; of the others:
IMAGES = (50, 40, 2, 3)


def test_dropout_is_counted():
    module = make_counted(mlp())
    dropout = module[3]
    assert isinstance(dropout, CountedDropout)
    assert list(module.state_dict()) == list(mlp().state_dict())
    assert isinstance(make_counted(nn.Dropout(0.1)), CountedDropout)
    *others, one = (run(cls, mlp) for cls in ENGINES)
    for other in others:
        assert_same(one[0], other[0])


def test_dropout_drops_its_share_and_keeps_the_mean():
    x = torch.ones(200, 500)
    layer = CountedDropout(0.3, layer=1).train()
    with keyed(torch.tensor(5)):
        y = layer(x)
        again = layer(x)
    with keyed(torch.tensor(6)):
        other = layer(x)
    assert torch.equal(y, again)
    assert not torch.equal(y, other)
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("p", [0.25, 0.8])
def test_units_are_dropped_one_by_one(p):
    """Four of them share a hash: each must drop its share, and none with its neighbours."""
    with keyed(torch.tensor(7)):
        y = CountedDropout(p, layer=2).train()(torch.ones(200_001))
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-4)]
    dropped = (y[:200_000] == 0).double().reshape(-1, 4)
    assert dropped.mean(0).tolist() == pytest.approx([p] * 4, abs=0.01)
    together = (dropped.T @ dropped) / len(dropped)
    assert (together - torch.eye(4) * (p - p**2) - p**2).abs().max() < 0.01


@pytest.mark.parametrize("p", [0.999999, 1.0])
def test_nothing_is_left_where_nearly_all_is_dropped(p):
    with keyed(torch.tensor(5)):
        assert not CountedDropout(p, layer=1).train()(torch.ones(10)).any()


def counted(layer: nn.Module, x: Tensor, key: int = 5) -> Tensor:
    with keyed(torch.tensor(key)):
        return make_counted(layer).train()(x)


def convolution(dropout: type[nn.Module], p: float = 0.4):
    """The dropout layer sees [N, 4, 4, 4]; Dropout1d [N, 4, 16], and Dropout3d [N, 2, 2, 4, 4]."""
    before = {nn.Dropout1d: nn.Flatten(2), nn.Dropout3d: nn.Unflatten(1, (2, 2))}.get(dropout, nn.Identity())
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 3), before, dropout(p), nn.Flatten(), nn.Linear(64, 3)).double()


@pytest.mark.parametrize("dropout", LAYERS)
def test_every_kind_is_the_same_in_every_engine_and_depends_on_its_rate(dropout):
    data = images()
    data = replace(data, train=replace(data.train, x=data.train.x.double()))
    *others, one = (trained(engine, convolution(dropout), data, lr=0.02)[1] for engine in ENGINES)
    for other in others:
        assert_close(one, other)
    _, less, _ = trained(ENGINES[-1], convolution(dropout, 0.1), data, lr=0.02)
    assert any((one[name] - less[name]).abs().max() > 1e-3 for name in one)


@pytest.mark.parametrize("dropout", LAYERS)
def test_values_are_those_of_pytorch(dropout):
    """Given which units are dropped: PyTorch gives a unit one of two values, x·a + b if it is kept, and c if not."""
    x = torch.full(INPUTS.get(dropout, IMAGES), 2.0, dtype=torch.float64)
    ours, theirs = counted(dropout(0.25), x), dropout(0.25)(x)
    torch.testing.assert_close(ours.unique(), theirs.unique())
    assert counted(dropout(0.25), 3 * x).max().item() == pytest.approx(dropout(0.25)(3 * x).max().item())
    assert (ours == ours.min()).double().mean().item() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("dropout", [layer for layer in LAYERS if KINDS[layer].channels])
def test_channels_are_dropped_whole_and_each_by_itself(dropout):
    y = counted(dropout(0.5), torch.ones(INPUTS.get(dropout, IMAGES))).flatten(2)
    assert torch.equal(y, y[:, :, :1].expand_as(y))
    dropped = y[:, :, 0] == y.min()
    assert dropped.any(0).all()  # every channel in some sample
    assert not dropped.all(0).any()  # but in none of them all
    assert len(dropped.unique(dim=0)) == len(dropped)


@pytest.mark.parametrize(("dropout", "shape"), [(nn.Dropout1d, (60, 7)), (nn.Dropout3d, (60, 2, 3, 2))])
def test_a_single_sample_has_its_channels_first_as_pytorch_reads_it(dropout, shape):
    for y in (counted(dropout(0.5), torch.ones(shape)), dropout(0.5)(torch.ones(shape))):
        assert torch.equal(y.flatten(1), y.flatten(1)[:, :1].expand(-1, y[0].numel()))
        assert y.unique().tolist() == [0.0, 2.0]


def test_alpha_dropout_by_hand():
    """p = ½ and c = −1.7580993: a = (½·(1 + c²/2))^−½ = 0.8864053, kept units are a·x − a·c/2, dropped ones a·c/2."""
    y = counted(nn.AlphaDropout(0.5), torch.tensor([1.0, -2.0]).repeat(50, 1))
    assert y[:, 0].unique().tolist() == pytest.approx([-0.7791944, 1.6655997])
    assert y[:, 1].unique().tolist() == pytest.approx([-0.9936162, -0.7791944])


@pytest.mark.parametrize("dropout", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_keeps_mean_and_variance(dropout):
    torch.manual_seed(0)
    y = counted(dropout(0.3), torch.randn(400, 300))
    assert (y.mean().item(), y.var().item()) == pytest.approx((0, 1), abs=0.02)


@pytest.mark.parametrize("dropout", list(KINDS))
def test_in_evaluation_nothing_is_dropped_nor_drawn(dropout):
    x, before = torch.ones(3, 4, 2), torch.get_rng_state()
    with keyed(torch.tensor(5)):
        assert torch.equal(make_counted(dropout(0.5)).eval()(x), x)
    assert torch.equal(torch.get_rng_state(), before)


class Attending(nn.Module):
    """A transformer's layer on four tokens of four features."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.tokens = nn.Linear(5, 16)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.layer(self.tokens(x).unflatten(1, (4, 4))).flatten(1))


def test_attention_drops_the_same_weights_in_every_engine():
    assert isinstance(make_counted(Attending()).layer.self_attn, CountedAttention)
    assert list(make_counted(Attending()).state_dict()) == list(Attending().state_dict())
    *others, one = (run(engine, Attending)[0] for engine in ENGINES)
    assert_same(others[0], one)
    assert_same(others[1], one)
    less = run(ENGINES[-1], lambda: Attending(0.1))[0]
    assert (one["tokens.weight"] - less["tokens.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "settings",
    [{}, {"batch_first": True}, {"kdim": 6, "vdim": 5}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}],
    ids=lambda settings: next(iter(settings), "plain"),
)
@pytest.mark.parametrize("average", [True, False])
def test_attention_is_that_of_pytorch_given_what_is_dropped(settings, average, monkeypatch):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, dropout=0.4, **settings)
    ours = make_counted(theirs)
    shape = (3, 5) if theirs.batch_first else (5, 3)
    query, key, value = (torch.randn(*shape, size) for size in (8, theirs.kdim, theirs.vdim))
    masks = {"attn_mask": torch.randn(5, 5), "key_padding_mask": torch.tensor([[0.0] * 4 + [-9]] * 3)}
    given = dict(query=query, key=key, value=value, average_attn_weights=average, **masks)
    with keyed(torch.tensor(5)):
        found, weights = ours(**given)
        shortest, nothing = ours(**given, need_weights=False)
    drop = CountedDropout(0.4, layer=0)
    monkeypatch.setattr(F, "dropout", lambda x, p: drop(x.unflatten(0, (3, 2))).flatten(0, 1))
    with keyed(torch.tensor(5)):
        expected, expected_weights = theirs(**given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(weights, expected_weights)
    assert torch.equal(shortest, found)
    assert nothing is None
    torch.testing.assert_close(ours.eval()(**given)[0], theirs.eval()(**given)[0])


def test_attention_of_a_single_sample_is_that_of_a_batch_of_one():
    layer = make_counted(nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True))
    x = torch.randn(5, 8)
    with keyed(torch.tensor(5)):
        torch.testing.assert_close(layer(x, x, x)[0], layer(x[None], x[None], x[None])[0][0])


def test_attention_without_dropout_is_left_as_it_is():
    assert type(make_counted(nn.MultiheadAttention(8, 2))) is nn.MultiheadAttention
