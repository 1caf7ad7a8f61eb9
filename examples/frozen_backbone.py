"""A pretrained backbone that stays frozen, and a small head that is trained by all.

    python examples/frozen_backbone.py

The backbone is pretrained here, on half of scikit-learn's digits, so that nothing is downloaded; take yours from timm,
torchvision or transformers. The clients have 15 images each. What is frozen is held once, and never sent.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedfew
from fedfew.evaluation.costs import cost

CLIENTS, EACH = 6, 15  # clients, and images of each
WIDTH = 64  # features that the head sees


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels, and a random order of the rows: the first half is public, the second the clients'."""
    x, y = load_digits(return_X_y=True)
    return (x / 8 - 1).astype(np.float32), y, np.random.default_rng(0).permutation(len(y))


def new_backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, WIDTH), nn.ReLU())


def pretrained() -> nn.Module:
    """A backbone trained on public images; a second of training stands for a download."""
    torch.manual_seed(0)
    x, y, order = digits()
    public = order[: len(order) // 2]
    inputs, labels = torch.from_numpy(x[public]), torch.from_numpy(y[public])
    backbone, head = new_backbone(), nn.Linear(WIDTH, 10)
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=0.003)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(backbone(inputs)), labels).backward()
        optimizer.step()
    return backbone


class Classifier(nn.Module):
    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def make_clients() -> fedfew.Federation:
    x, y, order = digits()
    private = order[len(order) // 2 :]
    mine, rest = private[: CLIENTS * EACH], private[CLIENTS * EACH :]
    train = [(x[rows], y[rows]) for rows in np.array_split(mine, CLIENTS)]
    test = [(x[rows], y[rows]) for rows in np.array_split(rest, CLIENTS)]
    return fedfew.Federation.from_arrays(train, test, name="digits")


def main() -> fedfew.Run:
    backbone, federation = pretrained(), make_clients()
    before = [p.clone() for p in backbone.parameters()]

    def model() -> nn.Module:
        return Classifier(backbone, federation.classes)

    def from_scratch() -> nn.Module:
        return nn.Sequential(new_backbone(), nn.Linear(WIDTH, federation.classes))

    settings = {"rounds": 40, "lr": 0.2, "batch_size": 5, "progress": False}
    run = fedfew.train(federation, model, "fedavg", **settings)
    plain = fedfew.train(federation, from_scratch, "fedavg", **settings)
    same = all(torch.equal(a, b) for a, b in zip(before, run.models[0].backbone.parameters(), strict=True))
    print(f"the backbone is as it was: {same}")
    for name, made, found in (("frozen backbone", model, run), ("from scratch", from_scratch, plain)):
        whole, sent = sum(p.numel() for p in made().parameters()), cost("fedavg", made, federation).bytes_down // 4
        accuracy = 100 * found.history.last("served_accuracy").mean()
        print(f"{name}: {accuracy:.0f} % correct, {sent:.0f} of {whole} numbers sent to a client per round")
    return run


if __name__ == "__main__":
    main()
