"""BatchNorm layers of a module: their names and what they need."""

import pytest
import torch
from torch import nn

from fedfew.models.batch_norm import needs_two, state_names, uses_batch_statistics, without_statistics


def test_what_is_known_of_batch_norm():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    assert state_names(module) == tuple(
        f"1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    )
    assert needs_two(module, torch.randn(1, 1, 3, 3))
    assert not needs_two(nn.Sequential(*module[:3]), torch.randn(1, 1, 3, 4))
    assert module[1].num_batches_tracked == 0  # asked of a copy
    with pytest.raises(RuntimeError):  # another error is not taken for an answer
        needs_two(module, torch.randn(1, 5, 3, 3))
    assert not uses_batch_statistics(module)
    assert uses_batch_statistics(without_statistics(module))
    assert state_names(module) == ("1.weight", "1.bias")
