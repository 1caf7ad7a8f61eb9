"""The transformer block of the examples on AG News: attention in plain matrix products, which all engines of fedfew take."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """tokens: [N, T, width]. hidden: 1 where a token must not be seen and 0 elsewhere, as the scores, [N, heads, T, T]."""
        x = self.before(tokens)
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = q @ k.mT / q.shape[-1] ** 0.5 - 1e4 * hidden
        tokens = tokens + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return tokens + self.narrow(torch.relu(self.wide(self.between(tokens))))
