"""Modules as users write them: frozen layers, tied weights, in-place activations, randomness in ``forward``."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fedfew
from fedfew.engines import LocalTraining, UnsupportedModuleError
from fedfew.evaluation.costs import cost
from fedfew.evaluation.metrics import evaluate
from fedfew.methods import METHODS
from fedfew.stack import count_bytes, leaves
from fedfew.training import model_check
from tests.methods.small import CLASSES, FEATURES, assert_same, federation, mlp, served, tensors, train
from tests.methods.tiers import FIRST, tiered

ENGINES = ("sequential", "threaded", "stacked")
HIDDEN = 5


def frozen_body() -> nn.Module:
    module = mlp()
    module[0].requires_grad_(False)
    return module


class TwoHeads(nn.Module):
    """A frozen random body, a trained layer with BatchNorm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(FEATURES, HIDDEN).requires_grad_(False), nn.BatchNorm1d(HIDDEN)
        self.middle, self.head = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.norm(self.body(x))).relu())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"), [(name, engine) for name in METHODS for engine in ENGINES if name in FIRST or engine == "stacked"]
)
def test_what_is_frozen_stays_and_does_not_travel(name: str, engine: str) -> None:
    data = federation((7, 12, 6, 10, 16, 8))
    run = train(METHODS[name](), data, model=TwoHeads, engine=engine, rounds=2)
    states = served(run)
    assert all(torch.equal(states[0]["body.weight"], state["body.weight"]) for state in states)
    still = served(train(METHODS[name](), data, model=TwoHeads, engine=engine, rounds=1, lr=1e-30))
    assert torch.equal(still[0]["body.weight"], states[0]["body.weight"])
    assert not torch.equal(still[0]["middle.weight"], states[0]["middle.weight"])
    held = [path for path in tensors(run) if path.rpartition("/")[2].startswith("body.")]
    assert held == []  # neither with the server nor with a client: once, in the module
    assert run.state.frozen.keys() == {"body.weight", "body.bias"}


@pytest.mark.parametrize("settings", [{"adapters": "lora:rank=2"}, {"freeze": "body"}])
def test_a_run_that_is_read_is_scored_with_the_frozen_body_it_was_trained_with(settings: dict[str, str], tmp_path: Path) -> None:
    data = federation()
    run = train(fedfew.FedAvg(), data, rounds=2, **settings)
    run.save(tmp_path)
    read = fedfew.load(tmp_path, model=mlp)
    for name, value in read.state.frozen.items():
        assert torch.equal(read.new_module().get_parameter(name), value)
    assert (evaluate(read, data).loss == evaluate(run, data).loss).all()


def test_a_frozen_body_costs_what_the_head_costs() -> None:
    head = 4 * (HIDDEN * CLASSES + CLASSES)
    found = cost("fedavg", frozen_body, federation())
    assert (found.bytes_down, found.model_bytes, found.bytes_up) == (head, head, head + 4)
    run = train(fedfew.FedAvg(), model=frozen_body, rounds=1, participation=1.0)
    assert int(run.history.last("bytes_down")) == 6 * head
    assert count_bytes(run.state.server) == head


@pytest.mark.parametrize("engine", ENGINES)
def test_a_frozen_body_trains_as_sgd_on_the_head_alone(engine: str) -> None:
    """Local training, full batches: the same as torch.optim.SGD on what has a gradient."""
    data = federation()
    run = train(
        fedfew.LocalOnly(),
        data,
        model=frozen_body,
        engine=engine,
        rounds=3,
        local_epochs=1,
        batch_size=100,
        momentum=0.0,
        weight_decay=0.1,
        participation=1.0,
    )
    start = served(train(fedfew.LocalOnly(), data, model=frozen_body, rounds=1, lr=1e-30))[0]
    for client in range(len(data)):
        module = frozen_body()
        module.load_state_dict(start)
        sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.2, weight_decay=0.1)
        x, y = data.train.of(client)
        for _ in range(3):
            sgd.zero_grad()
            F.cross_entropy(module(x), y).backward()
            sgd.step()
        assert_same(dict(module.state_dict()), dict(run.model_of(client).state_dict()), 1e-6)


def test_a_frozen_random_body_is_found_again(tmp_path: Path) -> None:
    run = train(fedfew.FedFew(models=2), model=frozen_body, folder=tmp_path)
    torch.manual_seed(99)
    loaded = fedfew.load(tmp_path, frozen_body)
    x, _ = federation().test.of(0)
    for a, b in zip(run.models, loaded.models, strict=True):
        assert torch.equal(a(x), b(x))
    resumed = train(fedfew.FedFew(models=2), model=frozen_body, folder=tmp_path, resume=True, rounds=5)
    assert_same(tensors(resumed), tensors(train(fedfew.FedFew(models=2), model=frozen_body, rounds=5)))


def test_joining_leaves_the_frozen_body_as_it_is() -> None:
    x, y = federation().train.of(4)
    start = frozen_body()
    joined = fedfew.join([start], x, y, training=LocalTraining(0.1, 4), keep_adapted=True)
    assert joined.adapted
    assert torch.equal(joined.module[0].weight, start[0].weight)
    assert not torch.equal(joined.module[2].weight, start[2].weight)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no parameter to train"):
        train(fedfew.FedAvg(), model=lambda: nn.Linear(FEATURES, CLASSES).requires_grad_(False))


class Tied(nn.Module):
    """An autoencoder's two layers share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(FEATURES, HIDDEN)
        self.decode = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.encode(x)) @ self.decode.weight
        return self.head(torch.tanh(self.encode(hidden + self.decode(x).mean(1, keepdim=True))))


@pytest.mark.parametrize("engine", ENGINES)
def test_tied_weights_train_as_sgd_would(engine: str, tmp_path: Path) -> None:
    data = federation()
    full = {"batch_size": 100, "momentum": 0.0, "participation": 1.0, "local_epochs": 1, "rounds": 3}
    run = train(fedfew.LocalOnly(), data, model=Tied, engine=engine, folder=tmp_path, **full)
    start = served(train(fedfew.LocalOnly(), data, model=Tied, rounds=1, lr=1e-30))[0]
    for client in (0, 4):
        module = Tied()
        module.load_state_dict(start)
        sgd = torch.optim.SGD(module.parameters(), 0.2)
        x, y = data.train.of(client)
        for _ in range(3):
            sgd.zero_grad()
            F.cross_entropy(module(x), y).backward()
            sgd.step()
        found = run.model_of(client)
        assert found.decode.weight is found.encode.weight
        assert_same(dict(module.state_dict()), dict(found.state_dict()), 1e-6)
    assert_same(dict(fedfew.load(tmp_path, Tied).model_of(4).state_dict()), dict(run.model_of(4).state_dict()))


@pytest.mark.parametrize("name", tiered())
def test_every_method_takes_tied_weights(name: str) -> None:
    a, b = (tensors(train(METHODS[name](), model=Tied, engine=engine, rounds=2)) for engine in ("sequential", "stacked"))
    assert_same(a, b, 2e-5)
    assert not any("decode" in path for path in a)  # one parameter, one name


class Masked(nn.Module):
    """Parameters without axes, and buffers of every kind: a mask, a counter, a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.scale, self.shift = nn.Parameter(torch.tensor(1.2)), nn.Parameter(torch.tensor(0.3))
        self.register_buffer("mask", torch.arange(FEATURES) != 1)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("centre", torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps.add_(1)
        return self.head(self.body((x - self.centre) * self.mask * self.scale).tanh() + self.shift)


@pytest.mark.parametrize("name", tiered())
def test_every_method_takes_parameters_without_axes_and_boolean_buffers(name: str) -> None:
    a, b = (tensors(train(METHODS[name](), model=Masked, engine=engine, rounds=2)) for engine in ("sequential", "stacked"))
    assert_same(a, b, 2e-5)


def test_a_mask_stays_as_it_is() -> None:
    assert torch.equal(train(fedfew.FedAvg(), model=Masked, rounds=2).model_of(3).mask, Masked().mask)


def activated(inplace: bool):
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, HIDDEN),
            nn.ReLU(inplace=inplace),
            nn.Linear(HIDDEN, HIDDEN),
            nn.LeakyReLU(0.1, inplace=inplace),
            nn.ELU(inplace=inplace),
            nn.Dropout(0.3, inplace=inplace),
            nn.Linear(HIDDEN, CLASSES),
        )

    return make


@pytest.mark.parametrize("engine", ENGINES)
def test_activations_in_place_are_those_out_of_place(engine: str) -> None:
    run = train(fedfew.FedFew(models=2), model=activated(True), engine=engine)
    assert_same(tensors(run), tensors(train(fedfew.FedFew(models=2), model=activated(False), engine=engine)))
    assert run.models[0][1].inplace  # what is handed out is the user's module


class Restless(nn.Module):
    """Randomness of its own in forward: in training, or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.inner, self.always = mlp(), always

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(F.dropout(x, 0.2, training=self.training or self.always))


class ByValue(nn.Module):
    """Looks at a number, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x if float(x.sum()) > 0 else -x)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize(("engine", "share"), [(engine, "none") for engine in ("auto", *ENGINES)] + [("stacked", "body")])
def test_a_module_with_randomness_of_its_own_is_trained_and_scored(always: bool, engine: str, share: str) -> None:
    run = train(fedfew.FedFew(models=2, share=share), model=lambda: Restless(always), engine=engine)
    assert run.round == 3
    assert all(bool(t.isfinite().all()) for t in leaves(run.state.server))


def test_auto_says_which_engine_it_took_and_what_it_could_not_take() -> None:
    told: list[str] = []
    run = train(fedfew.FedAvg(), model=ByValue, engine="auto", on_round=lambda p: told.extend(p.events))
    assert run.settings["engine"] != "stacked"
    assert re.match(rf"engine: {run.settings['engine']}, .*fastest in a trial with ", told[0])
    assert "the stacked engine cannot take ByValue" in told[0]
    assert "\n" not in told[0]
    named: list[str] = []
    train(fedfew.FedAvg(), engine="stacked", on_round=lambda p: named.extend(p.events))
    assert named == []  # what was asked for by name needs no reason


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_fewer_digits_on_a_cpu_are_said_to_do_nothing(precision: str) -> None:
    told: list[str] = []
    train(fedfew.FedAvg(), precision=precision, on_round=lambda p: told.extend(p.events))
    assert told == [f"precision is '{precision}', which has no effect here: a CPU computes in float32"]


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16])
def test_a_module_of_another_precision_is_refused_in_words_or_taken(kind: torch.dtype) -> None:
    name = str(kind).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"Sequential has parameters of {name}, but samples are float32.*make it float32"):
        train(fedfew.FedAvg(), model=lambda: mlp().to(kind))


class Converting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp().double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.double())


def test_a_module_that_converts_its_input_is_taken() -> None:
    assert train(fedfew.FedAvg(), model=Converting, rounds=1).models[0].inner[0].weight.dtype == torch.float64


class Counting(nn.Module):
    """Keeps count of its calls in training."""

    def __init__(self, in_place: bool, persistent: bool = True) -> None:
        super().__init__()
        self.inner, self.in_place = mlp(), in_place
        self.register_buffer("calls", torch.tensor(0.0), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.in_place:
            self.calls.add_(1)
        elif self.training:
            self.calls = self.calls + 1
        return self.inner(x)


def test_a_buffer_is_written_into_not_replaced() -> None:
    with pytest.raises(ValueError, match=r"Counting puts another tensor in the place of its buffer calls.*self\.calls\.copy_"):
        train(fedfew.FedAvg(), model=lambda: Counting(False))
    train(fedfew.FedAvg(), model=lambda: Counting(False, persistent=False), rounds=1)  # no part of what is trained and sent
    run = train(fedfew.FedAvg(), model=lambda: Counting(True), rounds=2, participation=1.0, local_epochs=1, batch_size=100)
    assert run.model_of(0).calls == 2


def test_a_name_with_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match=r"called 'a/b\.weight': a name must not have a slash"):
        train(fedfew.FedAvg(), model=lambda: nn.Sequential(OrderedDict({"a/b": nn.Linear(FEATURES, CLASSES)})))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_is_refused(use_reentrant: bool) -> None:
    """PyTorch would recompute with the module's own weights, and the gradients would be others' without a word."""

    class Recomputing(nn.Module):
        def __init__(self, recomputes: bool = True) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh()), nn.Linear(8, CLASSES)
            self.recomputes = recomputes

        def forward(self, x: Tensor) -> Tensor:
            if not (self.recomputes and self.training):
                return self.head(self.body(x))
            return self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=use_reentrant))

    with pytest.raises(ValueError, match="Recomputing runs Sequential a second time when gradients are computed"):
        train(METHODS["fedavg"](), model=Recomputing)
    module = Recomputing(recomputes=False)
    module.head.weight.grad = torch.ones(CLASSES, 8)
    model_check.check_outputs(module, federation())
    assert torch.equal(module.head.weight.grad, torch.ones(CLASSES, 8))
    assert module.body[0].weight.grad is None
    assert not module.training
    assert not any(layer._forward_pre_hooks for layer in module.modules())


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    module = mlp()
    norm(module[0])
    return module


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("name", ["spectral_norm", "weight_norm"])
@pytest.mark.parametrize("as_module", [True, False])
def test_a_norm_of_weights_that_cannot_be_copied_is_refused(name: str, as_module: bool) -> None:
    old = getattr(torch.nn.utils, name)
    with pytest.raises(ValueError, match=rf"Sequential has a layer with .*: use torch\.nn\.utils\.parametrizations\.{name}"):
        train(fedfew.FedAvg(), model=normed(old) if as_module else lambda: normed(old))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["spectral_norm", "weight_norm"])
def test_parametrised_weights_are_trained_as_by_pytorch(name: str, engine: str) -> None:
    norm, data = getattr(torch.nn.utils.parametrizations, name), federation((8,))
    torch.manual_seed(0)
    start = normed(norm)
    settings = {"rounds": 3, "local_epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.0, "participation": 1.0}
    if (name, engine) == ("spectral_norm", "stacked"):
        with pytest.raises(UnsupportedModuleError, match=r"the stacked engine cannot take Sequential.*use engine='sequential'"):
            train(fedfew.FedAvg(), data, start, engine=engine, **settings)
        return
    run = train(fedfew.FedAvg(), data, start, engine=engine, **settings)
    module, (x, y) = copy.deepcopy(start).train(), data.train.of(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    assert_same(dict(run.models[0].state_dict()), dict(module.state_dict()), 1e-6)


@pytest.mark.parametrize("listed", [False, True])
def test_a_tensor_computed_from_parameters_is_refused(listed: bool) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)
            self.double = {"weights": [2 * self.layer.weight]} if listed else 2 * self.layer.weight

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.double["weights"][0] if listed else self.double)

    for model in (Scaled, Scaled()):
        with pytest.raises(ValueError, match=r"model: Scaled\.double is computed from parameters.*: compute it in forward"):
            train(fedfew.FedAvg(), model=model)
