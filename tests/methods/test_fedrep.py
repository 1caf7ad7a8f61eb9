from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedfew import random_streams
from fedfew.methods import FedRep
from fedfew.models.split import head_names
from tests.methods.small import (
    CLASSES,
    FEATURES,
    FULL_BATCH,
    assert_close,
    clients_of,
    federation,
    linear,
    mean_by_samples,
    mlp,
    train,
)

LR = FULL_BATCH["lr"]


def two_layers() -> nn.Module:
    """logits = H B x"""
    return nn.Sequential(nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, CLASSES, bias=False))


def slopes(H: Tensor, B: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """∂/∂H and ∂/∂B of the mean cross-entropy."""
    p = ((x @ B.T @ H.T).softmax(1) - torch.eye(CLASSES, dtype=torch.float64)[y]) / len(y)
    return p.T @ (x @ B.T), H.T @ p.T @ x


def test_two_rounds_by_hand() -> None:
    data = federation()
    still = train(FedRep(), data, **(FULL_BATCH | {"model": two_layers, "lr": 1e-30}))
    B, H = (still.model_of(0).state_dict()[f"{layer}.weight"].double() for layer in (0, 1))
    heads = [H] * len(data)
    for _ in range(2):
        sent = []
        for i, (x, y) in enumerate(clients_of(data)):
            body = B
            for _ in range(3):
                heads[i] = heads[i] - LR * slopes(heads[i], body, x.double(), y)[0]
            body = body - LR * slopes(heads[i], body, x.double(), y)[1]
            sent.append(body)
        B = mean_by_samples(sent, data)
    run = train(FedRep(head_epochs=3, body_epochs=1), data, **(FULL_BATCH | {"model": two_layers}))
    for client, H in enumerate(heads):
        state = run.model_of(client).state_dict()
        assert_close(state["0.weight"], B)
        assert_close(state["1.weight"], H)


def test_only_the_body_travels() -> None:
    run = train(FedRep(), rounds=1, participation=1.0)
    body, losses = 4 * (FEATURES * 5 + 5), 4
    assert run.history.last("bytes_down") == len(federation()) * body
    assert run.history.last("bytes_up") == len(federation()) * (body + losses)
    assert run.models == []


def test_epochs_of_head_and_body_follow_local_epochs() -> None:
    a, b = train(FedRep(), local_epochs=3), train(FedRep(head_epochs=3, body_epochs=3), local_epochs=1)
    for name, value in a.model_of(0).state_dict().items():
        assert torch.equal(value, b.model_of(0).state_dict()[name])


def test_body_sees_other_batches_than_the_head_did(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, order_keys = [], random_streams.order_keys

    def recorded(seed: int, round: int, clients: Tensor, models: int, epoch: int) -> Tensor:
        seen.append(epoch)
        return order_keys(seed, round, clients, models, epoch)

    monkeypatch.setattr(random_streams, "order_keys", recorded)
    train(FedRep(head_epochs=2, body_epochs=1), rounds=1)
    assert seen == [0, 1, 2]


def test_published_trains_the_head_for_one_epoch() -> None:
    assert FedRep.as_published() == FedRep(head_epochs=1)


def test_head_is_the_last_linear_layer() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 2)
            self.norm = nn.LayerNorm(3)

    assert head_names(mlp().state_dict()) == ["2.weight", "2.bias"]
    assert head_names(Backwards().state_dict()) == ["out.weight", "out.bias"]
    assert head_names(Backwards().state_dict(), "norm") == ["norm.weight", "norm.bias"]
    assert head_names(nn.Sequential(nn.Linear(2, 2), mlp()).state_dict(), "1") == [
        "1.0.weight",
        "1.0.bias",
        "1.2.weight",
        "1.2.bias",
    ]


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head .*'classifier'.*0, 2"):
        train(FedRep(head="classifier"))
    with pytest.raises(ValueError, match=r"head: .*whole model"):
        train(FedRep(), model=linear)
    with pytest.raises(ValueError, match=r"head: .*no linear layer"):
        head_names(nn.Sequential(nn.Conv2d(1, 2, 3)).state_dict())
