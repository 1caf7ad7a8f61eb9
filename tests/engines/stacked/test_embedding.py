"""Embeddings in the stacked engine."""

import pytest
import torch
from torch import nn

import fedfew
from fedfew.engines import LocalTraining, Stacked, UnsupportedModuleError
from tests.engines.small import ENGINES, assert_same, replicas, run


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}])
def test_embeddings_that_the_stack_cannot_take(options):
    module = nn.Sequential(nn.Embedding(9, 4, **options), nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(UnsupportedModuleError, match=r"embedding \(0\) with max_norm.*engine='sequential'"):
        Stacked(module, LocalTraining(lr=0.1, batch_size=8), 0)


def test_padding_of_an_embedding_is_not_trained():
    """Tokens 0 to 3, of which 2 is padding: its vector takes part but stays."""
    x = torch.randint(4, (20, 5), generator=torch.Generator().manual_seed(0))
    data = fedfew.Federation.from_arrays([(x, x[:, 0] % 3)] * 2, [(x, x[:, 0] % 3)] * 2, classes=3)

    def embedded():
        module = nn.Sequential(nn.Embedding(4, 6, padding_idx=2), nn.Flatten(), nn.Linear(30, 3))
        nn.init.normal_(module[0].weight)
        return module

    *others, one = (run(cls, embedded, epochs=2, data=data) for cls in ENGINES)
    for other in others:
        assert_same(one[0], other[0])
    table, before = one[0]["0.weight"], replicas(embedded, 2)["0.weight"]
    assert torch.equal(table[:, :, 2], before[:, :, 2])
    assert (table[:, :, [0, 1, 3]] != before[:, :, [0, 1, 3]]).all()
