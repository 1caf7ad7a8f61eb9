"""Functions of PyTorch that vmap would take otherwise."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew.engines import LocalTraining, Sequential, Stacked, UnsupportedModuleError, make
from tests.engines.small import ENGINES, FEDERATION, assert_same, replicas, run
from tests.helpers import linear

X = torch.randint(4, (20, 5), generator=torch.Generator().manual_seed(0))
DATA = fedfew.Federation.from_arrays([(X, X[:, 0] % 3)] * 2, [(X, X[:, 0] % 3)] * 2, classes=3)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}])
def test_embeddings_that_the_stack_cannot_take(options):
    module = nn.Sequential(nn.Embedding(9, 4, **options), nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(UnsupportedModuleError, match=r"an embedding with max_norm.*engine='sequential'"):
        run(Stacked, lambda: module, data=DATA)
    engine = make("auto", module, LocalTraining(lr=0.1, batch_size=8), 0, DATA.train, 2)
    assert engine.name != "stacked"


class Embedded(nn.Module):
    def __init__(self, lookup):
        super().__init__()
        self.table, self.out, self.lookup = nn.Embedding(4, 6, padding_idx=2), nn.Linear(30, 3), lookup
        nn.init.normal_(self.table.weight)

    def forward(self, x):
        return self.out((self.table(x) if self.lookup is None else self.lookup(x, self.table.weight)).flatten(1))


@pytest.mark.parametrize(
    "lookup",
    [
        None,
        lambda x, table: F.embedding(x, table, -2),
        lambda x, table: F.embedding(x, table, padding_idx=2),
        lambda x, table: torch.embedding(table, x, 2),
    ],
)
def test_padding_of_an_embedding_is_not_trained(lookup):
    """Tokens 0 to 3, of which 2 is padding: its vector takes part but stays."""
    embedded = partial(Embedded, lookup)
    *others, one = (run(cls, embedded, epochs=2, data=DATA) for cls in ENGINES)
    for other in others:
        assert_same(one[0], other[0])
    table, before = one[0]["table.weight"], replicas(embedded, 2)["table.weight"]
    assert torch.equal(table[:, :, 2], before[:, :, 2])
    assert (table[:, :, [0, 1, 3]] != before[:, :, [0, 1, 3]]).all()


class Damped(nn.Linear):
    """Halves its gradient where it is asked for one."""

    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient / 2)
        return y


def test_hooks_on_gradients_which_vmap_would_leave_out_are_refused():
    def hooked():
        layer = linear()
        layer.register_full_backward_pre_hook(lambda layer, gradients: tuple(g / 2 for g in gradients))
        return layer

    for damped in (lambda: Damped(5, 3), hooked):
        with pytest.raises(UnsupportedModuleError, match="vmap says"):
            run(Stacked, damped)


def transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 4, 0.0, batch_first=True)
    return nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (1, 6)), layer, nn.Flatten(), nn.Linear(6, 3))


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("method", ["fedavg", "local"])  # models that all clients share, and own ones
def test_a_transformer_is_scored_without_a_warning_of_pytorch(method):
    run = fedfew.train(FEDERATION, transformer, method, rounds=1, lr=0.1, batch_size=8, engine="stacked")
    assert run.settings["engine"] == "stacked"


def test_a_transformer_is_differentiated_in_evaluation():
    """There PyTorch has an operation without a derivative, for layers that are not asked for one."""
    found = []
    for cls in (Stacked, Sequential):
        engine = cls(transformer(), LocalTraining(lr=0.1, batch_size=8), 0)
        found.append(engine.gradient(replicas(transformer, len(FEDERATION)), FEDERATION.train)[0])
    assert_same(*found)
