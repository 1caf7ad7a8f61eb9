"""FedRoD: its limits, classes that are missing, and which heads it takes. A float64 reference is in personal_references.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fedfew
from fedfew.methods import FedAvg, FedRoD, make
from fedfew.models.split import linear_head
from tests.methods.small import CLASSES, FEATURES, assert_same, federation, mlp, served, train


def test_without_balancing_the_generic_model_is_fedavgs() -> None:
    rod, avg = train(FedRoD(gamma=0.0)), train(FedAvg())
    generic = dict(rod.models[0].state_dict())
    assert_same(generic, dict(avg.models[0].state_dict()), 1e-6)
    assert not torch.allclose(served(rod)[0]["2.weight"], generic["2.weight"])


def test_served_is_the_generic_model_with_the_personal_head_added() -> None:
    run = train(FedRoD(), participation=1.0)
    generic = dict(run.models[0].state_dict())
    for i, state in enumerate(served(run)):
        assert torch.equal(state["0.weight"], generic["0.weight"])
        assert torch.equal(state["2.bias"], generic["2.bias"] + run.state.own["2.bias"][i])


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_clients_without_some_classes_stay_finite(engine: str) -> None:
    whole = federation()
    parts = [whole.train.of(i) for i in range(len(whole))]
    one_class = [(x, torch.full_like(y, i % CLASSES)) for i, (x, y) in enumerate(parts)]
    data = fedfew.Federation.from_arrays(one_class, one_class, classes=CLASSES)
    run = train(FedRoD(), data, engine=engine, rounds=6, label_smoothing=0.1)
    assert all(t.isfinite().all() for state in served(run) for t in state.values())
    assert run.history.last("served_accuracy").min() == 1.0


def test_the_balanced_loss_moves_absent_classes_little() -> None:
    """With one class at each client, the generic head hardly moves: it cannot tell it from being the only one there is."""
    x, y = federation().train.of(0)
    data = fedfew.Federation.from_arrays([(x, torch.zeros_like(y))], [(x, y)], classes=CLASSES)
    settings = {"participation": 1.0, "momentum": 0.0, "rounds": 1}
    balanced, plain = (train(FedRoD(gamma=g), data, **settings).models[0].state_dict()["2.bias"] for g in (1.0, 0.0))
    start = train(FedRoD(), data, **(settings | {"lr": 1e-30})).models[0].state_dict()["2.bias"]
    assert (balanced - start).abs().max() < 1e-5 < 0.01 < (plain - start).abs().max()


def test_a_head_without_bias_and_one_that_is_no_linear_layer() -> None:
    def bare() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES, bias=False))

    assert served(train(FedRoD(), model=bare, rounds=1))[0].keys() == {"0.weight", "0.bias", "2.weight"}
    with pytest.raises(ValueError, match="head: '1' must be a linear layer"):
        linear_head(nn.Sequential(nn.Linear(FEATURES, FEATURES), mlp()).state_dict(), "1")
    with pytest.raises(ValueError, match="head: '0' must be a linear layer"):
        linear_head(nn.Sequential(nn.Conv2d(1, 2, 3), mlp()).state_dict(), "0")


class HeadFirst(nn.Module):
    """Its last linear layer is not the output layer."""

    def __init__(self, features: int = 5) -> None:
        super().__init__()
        self.head = nn.Linear(features, CLASSES)
        self.body = nn.Linear(FEATURES, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_head_that_is_defined_before_the_body_is_named(engine: str) -> None:
    run = train(FedRoD(head="head"), model=HeadFirst, engine=engine, participation=1.0)
    generic = dict(run.models[0].state_dict())
    assert run.state.own.keys() == {"head.weight", "head.bias"}
    assert torch.equal(served(run)[0]["head.bias"], generic["head.bias"] + run.state.own["head.bias"][0])


@pytest.mark.parametrize(
    "model",
    [HeadFirst, lambda: HeadFirst(CLASSES), lambda: nn.Sequential(mlp(), nn.LayerNorm(CLASSES))],
    ids=["wider", "as wide", "a layer after it"],
)
def test_a_head_whose_outputs_are_not_the_logits_is_refused(model: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"fedrod: the head of .* whose outputs are not the logits: name the linear layer"):
        train(FedRoD(), model=model)


def test_a_softmax_after_the_head_is_taken() -> None:
    """It changes no probability, so heads can be added before it."""
    plain = train(FedRoD())
    ended = train(FedRoD(), model=lambda: nn.Sequential(*mlp(), nn.LogSoftmax(1)))
    assert_same(served(ended)[0], served(plain)[0], 1e-5)


def test_a_layer_that_the_model_does_not_use_is_no_head() -> None:
    class Unused(HeadFirst):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(5, CLASSES)

    with pytest.raises(ValueError, match="the head of Unused is taken to be 'other', which its forward does not use"):
        train(FedRoD(), model=Unused)


@pytest.mark.parametrize("name", ["knnper", "fedpac"])
def test_other_methods_with_classes_refuse_a_head_with_too_few_outputs(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: the head of HeadFirst is taken to be 'body', which has 2 outputs"):
        train(make(name), model=lambda: HeadFirst(2))
    run = train(make(name, head="head"), model=lambda: HeadFirst(2), label_prior="client")
    assert all(t.isfinite().all() for state in served(run) for t in state.values())


@pytest.mark.parametrize("name", ["feddbe", "knnper", "fedpac"])
def test_a_head_that_sees_several_vectors_per_sample_is_refused(name: str) -> None:
    class Pooled(nn.Module):
        """The mean over places comes after the head."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(1, 2), nn.Linear(2, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.body(x[..., None])).mean(1)
            return out

    with pytest.raises(ValueError, match=rf"{name}: the head of Pooled .* one vector of features per sample"):
        train(make(name), model=Pooled)
