"""The paper's CNN."""

import torch
from torch import nn

from fedfew import models


def test_pooling_before_relu_changes_nothing():
    """The paper's order, ReLU then pooling: the same output and the same gradients to the last bit."""
    ours = models.build("cnn", (3, 32, 32), 10)
    order = [0, 2, 1, 3, 5, 4, 6, 7, 8, 9]
    paper = nn.Sequential(*(ours[i] for i in order))
    assert [type(layer).__name__ for layer in paper[:3]] == ["Conv2d", "ReLU", "MaxPool2d"]
    x, y = torch.randn(7, 3, 32, 32), torch.arange(7)
    found = []
    for module in (ours, paper):
        module.zero_grad()
        logits = module(x)
        nn.functional.cross_entropy(logits, y).backward()
        found.append((logits, *(p.grad.clone() for p in ours.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
