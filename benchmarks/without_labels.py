"""Accuracy of a new client with and without labels: how well do the models' certainty and an estimated label prior stand in?

``python benchmarks/without_labels.py`` prints a table. Every client of digits in turn is taken for one that took no part: it
chooses by its training inputs, with or without their labels, and is scored on its test samples.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import fedfew
from fedfew.config.recipes import Recipe
from fedfew.models.served import ServedModel

SETTINGS: list[tuple[str, Recipe, int]] = [
    ("rotation", "plain", 4),
    ("dirichlet:0.3", "strong", 3),
    ("dirichlet:0.3+rotation", "strong", 4),
]


def accuracies(partition: str, recipe: Recipe, models: int, seed: int, rounds: int) -> list[list[float]]:
    """Per client: with labels, without, and all models mixed equally without a prior."""
    federation = fedfew.data.load("digits", partition=partition, clients=20, seed=seed)
    method = fedfew.FedFew(models=models)
    run = fedfew.train(
        federation, "mlp", method, rounds=rounds, score_every=rounds, batch_size=10, lr=0.1, recipe=recipe, seed=seed
    )
    rows = []
    for i in range(len(federation)):
        x, y = (t.numpy() for t in federation.train.of(i))
        new, labels = federation.test.of(i)
        with torch.no_grad():
            equal = ServedModel(run.models)(new.float()).argmax(1)
        known, unknown = (run.for_new_client(*given).predict(new.numpy()) for given in [(x, y), (x,)])
        rows.append([float((p == labels.numpy()).mean()) for p in (known, unknown, equal.numpy())])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    print("| clients differ by | recipe | with labels | without labels | all models alike, no prior |\n|---|---|---|---|---|")
    for partition, recipe, models in SETTINGS:
        rows = [row for seed in range(given.seeds) for row in accuracies(partition, recipe, models, seed, given.rounds)]
        known, unknown, equal = 100 * np.mean(rows, axis=0)
        print(f"| {partition} | {recipe} | {known:.1f} | {unknown:.1f} | {equal:.1f} |")


if __name__ == "__main__":
    main()
