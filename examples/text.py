"""Texts in a pandas data frame, and a small model of your own.

    python examples/text.py

The texts are made up: ratings from three shops. In one of them "cheap" is praise, in the others it is blame.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedfew
from fedfew.methods import FedFew

SHOPS = ("books", "shoes", "discount")


class MeanEmbedding(nn.Module):
    """The mean of the word vectors, then a linear layer."""

    def __init__(self, vocabulary: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        known = (tokens > 0).unsqueeze(-1)
        return self.head((self.embedding(tokens) * known).sum(1) / known.sum(1))


def make_texts(rows: int = 450) -> dict[str, list[str]]:
    rng = np.random.default_rng(0)
    texts, ratings, shops = [], [], []
    for i in range(rows):
        shop, good = SHOPS[i % 3], bool(rng.integers(2))
        cheap = good if shop == "discount" else not good
        words = ["It", "looks", "cheap" if cheap else "expensive", "to", str(rng.choice(["me", "us", "everyone"]))]
        texts.append(" ".join(words))
        ratings.append("good" if good else "bad")
        shops.append(shop)
    return {"review": texts, "rating": ratings, "shop": shops}


def main(seed: int = 0) -> fedfew.training.Run:
    import pandas as pd

    frame = pd.DataFrame(make_texts())
    federation = fedfew.data.load(frame, input="review", label="rating", client="shop")
    print(federation)
    words = 4 + len(federation.preprocessing.words)  # type: ignore[union-attr]  # texts have a vocabulary; 4 tokens are special
    # Adam: embeddings of rare words get steps of the same size. With plain SGD the outcome depends on the seed.
    settings = {"optimizer": "adam", "lr": 0.05, "rounds": 30, "batch_size": 10}
    run = fedfew.train(federation, lambda: MeanEmbedding(words, federation.classes), FedFew(models=2), seed=seed, **settings)
    for name, accuracy, model in zip(
        federation.client_names, run.history.last("served_accuracy"), run.choice.tolist(), strict=True
    ):
        print(f"{name}: {100 * accuracy:.0f} % correct, served by model {model}")
    return run


if __name__ == "__main__":
    main()
