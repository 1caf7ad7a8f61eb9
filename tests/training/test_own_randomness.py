"""A line says where a model draws random numbers that do not follow from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedfew
from fedfew.training import own_randomness
from tests.helpers import federation, same_run
from tests.training.test_random_state import assert_untouched

DATA = federation((13, 22, 7))


class Between(nn.Module):
    """Two linear layers, and something between them in training."""

    def __init__(self, change: Callable[[Tensor], Tensor], always: bool = False) -> None:
        super().__init__()
        self.first, self.out, self.change, self.always = nn.Linear(5, 8), nn.Linear(8, 3), change, always

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.out(self.change(hidden) if self.training or self.always else hidden)


class Recurrent(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(5, 4, 2, dropout=dropout, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x[:, None])[0][:, 0])


def attended(x: Tensor) -> Tensor:
    tokens = x.unflatten(1, (4, 2))
    return F.scaled_dot_product_attention(tokens, tokens, tokens, dropout_p=0.3).flatten(1)


DRAWING = {
    "F.dropout": lambda: Between(lambda x: F.dropout(x, 0.3)),
    "F.dropout in evaluation, too": lambda: Between(lambda x: F.dropout(x, 0.3), always=True),
    "torch.rand": lambda: Between(lambda x: x + torch.rand(x.shape)),
    "scaled_dot_product_attention": lambda: Between(attended),
    "numpy": lambda: Between(lambda x: x * float(np.random.rand())),
    "Python": lambda: Between(lambda x: x * random.random()),
    "RReLU": lambda: nn.Sequential(nn.Linear(5, 8), nn.RReLU(), nn.Linear(8, 3)),
    "GRU": lambda: Recurrent(0.3),
}
COUNTED = {
    "nothing": lambda: Between(torch.tanh),
    "GRU without dropout": lambda: Recurrent(0.0),
    "Dropout": lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "AlphaDropout": lambda: nn.Sequential(nn.Linear(5, 8), nn.AlphaDropout(0.3), nn.Linear(8, 3)),
    "attention": lambda: nn.Sequential(
        nn.Linear(5, 8),
        nn.Unflatten(1, (2, 4)),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True),
        nn.Flatten(),
        nn.Linear(8, 3),
    ),
}


def told(model: Callable[[], nn.Module], **settings: object) -> list[str]:
    found: list[str] = []
    settings = {"rounds": 2, "engine": "sequential", "on_round": lambda p: found.extend(p.events)} | settings
    fedfew.train(DATA, model, fedfew.FedAvg(), **settings)
    return found


@pytest.mark.parametrize("kind", DRAWING)
def test_a_model_that_draws_itself_is_named_once(kind: str) -> None:
    (line,) = told(DRAWING[kind])
    assert "draws random numbers of its own in training" in line
    assert "outcomes differ between engines and after a resume" in line
    assert "\n" not in line


@pytest.mark.parametrize("kind", COUNTED)
def test_of_layers_that_follow_from_the_seed_nothing_is_said(kind: str) -> None:
    assert told(COUNTED[kind]) == []


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_nor_of_the_models_that_come_with_fedfew(model: str) -> None:
    assert own_randomness.note(fedfew.models.factory(model, (5,), 3)(), DATA.train) == []


def test_the_innermost_layer_is_named() -> None:
    assert own_randomness.note(DRAWING["GRU"](), DATA.train)[0].startswith("model: rnn (GRU) draws random numbers")
    assert own_randomness.note(DRAWING["torch.rand"](), DATA.train)[0].startswith("model: Between draws random numbers")
    nested = nn.Sequential(nn.Linear(5, 5), DRAWING["F.dropout"]())
    assert own_randomness.note(nested, DATA.train)[0].startswith("model: 1 (Between) draws random numbers")


def test_a_part_that_is_compiled_takes_no_hooks_and_is_seen_by_the_layer_around_it() -> None:
    compiled = torch.jit.trace(nn.RReLU(), torch.ones(2, 8), check_trace=False)
    module = nn.Sequential(nn.Linear(5, 8), compiled, nn.Linear(8, 3))
    assert own_randomness.note(module, DATA.train)[0].startswith("model: Sequential draws random numbers")


def test_where_features_are_computed_once_their_randomness_does_not_count() -> None:
    """Then the body is in evaluation mode, and only the head is trained."""
    body = nn.Sequential(nn.Linear(5, 8), nn.RReLU(), nn.Linear(8, 3))
    assert not any("draws" in line for line in told(lambda: body, freeze="body"))


@pytest.mark.parametrize("kind", DRAWING)
def test_the_check_draws_nothing_and_leaves_the_module_as_it_was(kind: str) -> None:
    module = nn.Sequential(nn.BatchNorm1d(5), DRAWING[kind]()).eval()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    assert_untouched(lambda: own_randomness.note(module, DATA.train))
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    assert not module.training
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())


@pytest.mark.parametrize("kind", ["AlphaDropout", "attention"])
def test_a_resumed_run_drops_what_the_whole_one_drops(kind: str, tmp_path: Path) -> None:
    settings = {"engine": "sequential", "folder": tmp_path, "checkpoint_every": 1}
    whole = fedfew.train(DATA, COUNTED[kind], fedfew.FedFew(models=2), rounds=3, engine="sequential")
    fedfew.train(DATA, COUNTED[kind], fedfew.FedFew(models=2), rounds=2, **settings)
    same_run(fedfew.train(DATA, COUNTED[kind], fedfew.FedFew(models=2), rounds=3, resume=True, **settings), whole)
