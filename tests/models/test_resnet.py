"""ResNet-18: its layers, and training it in two engines."""

import pytest
import torch
from torch import nn

import fedfew
from fedfew import models
from fedfew.models.batch_norm import batch_norms
from tests.engines.small import images
from tests.helpers import difference


def test_resnet18_layers():
    """Two layers a block, eight blocks, the stem and the last layer: 18; three shortcuts change their width."""
    module = models.build("resnet18", (3, 64, 64), 8)
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    assert len([c for c in convolutions if c.kernel_size != (1, 1)]) + 1 == 18
    assert len(batch_norms(module)) == len(convolutions) == 20
    assert (convolutions[0].kernel_size, convolutions[0].stride) == ((7, 7), (2, 2))
    assert module.blocks(module.stem(torch.randn(2, 3, 64, 64))).shape == (2, 512, 2, 2)
    assert not batch_norms(models.build("resnet18-gn", (3, 64, 64), 8))


@pytest.mark.slow
def test_resnet18_trains_alike_in_both_engines():
    data = images((8, 5), shape=(1, 32, 32), test=2)
    settings = {"rounds": 1, "batch_size": 8, "lr": 0.001, "device": "cpu"}
    runs = [fedfew.train(data, "resnet18", "fedavg", engine=engine, **settings) for engine in ("stacked", "sequential")]
    assert difference(*runs) < 1e-4
    assert runs[0].state.server["stem.1.num_batches_tracked"].tolist() == [1]
