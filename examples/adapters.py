"""One pretrained transformer, and few adapters for many clients.

    python examples/adapters.py

The transformer is pretrained here, on half of scikit-learn's digits, so that nothing is downloaded. Each of the eight rows of an
image is a token. The clients have the other half, 20 images each for training. They belong to four groups that name the digits
differently: the labels of each group are permuted. One adapter cannot serve all groups, and 20 images are few for an adapter per
client.
"""

from __future__ import annotations

import copy
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedfew
from fedfew.adapters import LoRA
from fedfew.stack import count_bytes

CLIENTS, GROUPS, EACH = 20, 4, 20  # clients, their groups, and training images of each client
WIDTH = 48
ROUNDS = 40


class RowTransformer(nn.Module):
    """The rows of an image as tokens, blocks of attention, the mean over tokens, and a head."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, WIDTH), nn.Parameter(0.1 * torch.randn(8, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.unflatten(1, (8, 8))) + self.place
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens.mean(1)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.before(tokens)
        attention = (self.query(x) @ self.key(x).mT / WIDTH**0.5).softmax(-1)
        tokens = tokens + attention @ self.value(x)
        return tokens + self.narrow(torch.relu(self.wide(self.between(tokens))))


def digits() -> tuple[Tensor, Tensor, np.ndarray]:
    """Images, labels, and a random order of the rows: the first half is public, the second the clients'."""
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy((x / 8 - 1).astype(np.float32)), torch.from_numpy(y), np.random.default_rng(0).permutation(len(y))


def pretrained() -> nn.Module:
    torch.manual_seed(0)
    x, y, order = digits()
    x, y = x[order[: len(order) // 2]], y[order[: len(order) // 2]]
    model = RowTransformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def make_clients() -> fedfew.Federation:
    x, y, order = digits()
    private = order[len(order) // 2 :]
    names = [np.random.default_rng(g).permutation(10) for g in range(GROUPS)]  # what each group calls the digits
    parts = []
    for client, rows in enumerate(np.array_split(private, CLIENTS)):
        parts.append((x[rows], torch.from_numpy(names[client % GROUPS])[y[rows]]))
    train, test = ([(a[part], b[part]) for a, b in parts] for part in (slice(EACH), slice(EACH, None)))
    return fedfew.Federation.from_arrays(train, test, classes=10)


def main(rounds: int = ROUNDS) -> dict[str, float]:
    torch.set_num_threads(1)
    base, federation = pretrained(), make_clients()

    def new_head() -> nn.Module:
        """Different for each of the K models: with equal ones IFCA's clients would all choose the first."""
        model = copy.deepcopy(base)
        model.head = nn.Linear(WIDTH, 10)
        return model

    everything = count_bytes(dict(base.state_dict()))
    print(f"{federation}\nThe whole model has {everything:,} bytes.")
    lora = LoRA(rank=4, alpha=8, targets=["query", "value", "wide"])
    methods = {
        "FedAvg-LoRA": fedfew.FedAvg(),
        "local LoRA": fedfew.LocalOnly(),
        "IFCA-LoRA": fedfew.IFCA(models=GROUPS),
        "FedFew-LoRA": fedfew.FedFew(models=GROUPS),
    }
    found = {}
    for name, method in methods.items():
        begin = time.perf_counter()
        settings = {"rounds": rounds, "local_epochs": 2, "batch_size": 10, "lr": 0.1, "score_every": rounds, "device": "cpu"}
        run = fedfew.train(federation, new_head, method, adapters=lora, engine="stacked", **settings)
        seconds = (time.perf_counter() - begin) / rounds
        found[name] = float(run.scores("served").mean())
        down = int(run.history["bytes_down"][-1]) // CLIENTS
        print(f"{name:12} {100 * found[name]:5.1f} % correct, {down:7,} bytes to a client per round, {seconds:.2f} s per round")
    return found


if __name__ == "__main__":
    main()
