"""LoRA: the start, the gradient by hand, what is trained, sent and averaged, on all engines."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedfew
from fedfew import export
from fedfew.adapters import LoRA, TrainedPart, merged
from fedfew.adapters.lora import AdaptedLayer
from fedfew.evaluation.costs import cost
from fedfew.federation import Federation
from fedfew.methods import METHODS
from fedfew.models.state import frozen_hash
from tests.methods.small import CLASSES, FEATURES, PLAIN, assert_same, differ, federation, mlp, served, tensors, train

HIDDEN, RANK = 5, 2
ADAPTERS, HEAD = RANK * (FEATURES + HIDDEN), HIDDEN * CLASSES + CLASSES  # of mlp()


class Net(nn.Module):
    """Convolutions, BatchNorm, dropout, a layer used twice, a buffer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.BatchNorm2d(3)
        self.grouped = nn.Conv2d(3, 3, 1, groups=3)
        self.first = nn.Linear(12, 12)
        self.second, self.drop = self.first, nn.Dropout(0.2)
        self.head = nn.Linear(12, CLASSES)
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(self.norm(self.conv(x)).relu()).flatten(1)
        return self.head(self.second(self.drop(self.first(x).tanh())).tanh() * self.factor)


def images() -> Federation:
    draw = torch.Generator().manual_seed(1)

    def clients(*sizes: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.randn(n, 1, 4, 4, generator=draw), torch.arange(n) % CLASSES) for n in sizes]

    return Federation.from_arrays(clients(7, 9, 6), clients(4, 4, 4), classes=CLASSES)


def adapted(module: nn.Module, **settings: Any) -> nn.Module:
    return LoRA(**({"rank": RANK} | settings)).adapt(copy.deepcopy(module))


def moved(module: nn.Module) -> nn.Module:
    """The module, its adapters no longer at their start."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, AdaptedLayer):
                layer.lora_B.weight.normal_(generator=torch.Generator().manual_seed(2))
    return module


def test_the_start_is_the_base_to_the_last_bit() -> None:
    module, x = Net().eval(), torch.randn(6, 1, 4, 4)
    assert torch.equal(adapted(module).eval()(x), module(x))
    assert not torch.allclose(moved(adapted(module)).eval()(x), module(x))


def test_a_linear_layer_and_its_gradient_by_hand() -> None:
    """For g = ∂L/∂y: ∂B = s·gᵀ(xAᵀ), ∂A = s·Bᵀgᵀx, and the base has none."""
    torch.manual_seed(0)
    layer = moved(LoRA(rank=RANK, alpha=3, train_head=False).adapt(nn.Linear(FEATURES, HIDDEN)))
    assert isinstance(layer, AdaptedLayer)
    x, g, s = torch.randn(7, FEATURES), torch.randn(7, HIDDEN), 3 / RANK
    a, b = layer.lora_A.weight, layer.lora_B.weight
    y = layer(x)
    torch.testing.assert_close(y, x @ (layer.base.weight + s * b @ a).T + layer.base.bias)
    y.backward(g)
    torch.testing.assert_close(b.grad, s * g.T @ (x @ a.T))
    torch.testing.assert_close(a.grad, s * b.T @ g.T @ x)
    assert layer.base.weight.grad is None
    assert layer.bias is layer.base.bias


def test_merging_gives_plain_layers_with_the_same_outputs() -> None:
    module, x = moved(adapted(Net())).eval(), torch.randn(6, 1, 4, 4)
    plain = merged(module)
    assert not any(isinstance(layer, AdaptedLayer) for layer in plain.modules())
    assert plain.second is plain.first
    torch.testing.assert_close(plain(x), module(x))
    torch.testing.assert_close(module.conv.weight, plain.conv.weight)


def test_which_layers_get_an_adapter_and_what_is_trained() -> None:
    module = adapted(Net())
    assert module.second.lora_A.weight is module.first.lora_A.weight  # one adapter for a layer used twice
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert trained == {
        *(f"{layer}.lora_{factor}.weight" for layer in ("conv", "first") for factor in "AB"),
        "head.weight",
        "head.bias",
    }
    assert [name for name, _ in module.named_buffers()] == []  # frozen: BatchNorm's statistics and other buffers
    some = {name for name, p in adapted(Net(), targets=["fir*"], train_head=False).named_parameters() if p.requires_grad}
    assert some == {"first.lora_A.weight", "first.lora_B.weight"}
    whole = adapted(Net(), train_head=False)
    assert isinstance(whole.head, AdaptedLayer)
    only_b = {name for name, p in adapted(Net(), average="freeze-a").named_parameters() if p.requires_grad}
    assert only_b == {name for name in trained if "lora_A" not in name}


def test_a_target_is_a_whole_name_or_its_last_parts() -> None:
    block = nn.ModuleDict({"query": nn.Linear(4, 4), "value": nn.Linear(4, 4)})
    module = nn.ModuleDict({"blocks": nn.ModuleList([block, copy.deepcopy(block)]), "query": nn.Linear(4, 4)})

    def chosen(*targets: str) -> set[str]:
        found = adapted(module, targets=targets, train_head=False).named_modules()
        return {name for name, layer in found if isinstance(layer, AdaptedLayer)}

    assert chosen("query") == {"blocks.0.query", "blocks.1.query", "query"}
    assert chosen("1.query") == {"blocks.1.query"}
    assert chosen("blocks.*.value") == {"blocks.0.value", "blocks.1.value"}
    with pytest.raises(ValueError, match="no layer in targets is called 'uery'"):
        chosen("uery")


def test_the_hash_of_what_is_frozen_knows_names_types_shapes_and_values() -> None:
    def of(*layers: tuple[str, Tensor]) -> str:
        module = nn.Module()
        for name, value in layers:
            module.register_parameter(name, nn.Parameter(value, requires_grad=False))
        return frozen_hash(module)

    one, two = torch.ones(2, 3), torch.full((2, 3), 2.0)
    seen = {of(("a", one), ("b", two)), of(("b", one), ("a", two)), of(("a", one), ("b", one)), of(("a", one)), of()}
    seen |= {of(("a", one.view(3, 2))), of(("a", one.double())), of(("a", one + 1e-6))}
    assert len(seen) == 8
    assert of(("a", torch.zeros(2))) != of(("a", -torch.zeros(2)))  # by bits
    assert of(("a", one.T.contiguous().T)) == of(("a", one))  # whatever their order in memory
    module = nn.Linear(2, 2)
    assert frozen_hash(module) == of()  # what is trained does not count


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(4), lambda: nn.InstanceNorm1d(4, track_running_stats=True)])
def test_frozen_statistics_stay_in_every_place_of_a_layer(layer: Any) -> None:
    """They are there once for all replicas: no step may write into them."""
    norm = layer()
    module = TrainedPart.named("lora", "none").of(lambda: nn.Sequential(norm, nn.Tanh(), norm, nn.Flatten(), nn.Linear(20, 2)))()
    before = {name: t.clone() for name, t in module.state_dict().items() if "running" in name}
    module.train()(torch.randn(3, 4, 5))
    assert len(before) == 4
    assert all(torch.equal(t, module.state_dict()[name]) for name, t in before.items())


class Following(nn.Module):
    """It subtracts the batch's mean in training, and in evaluation that of the batches so far, which is in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        if self.training:
            self.mean.lerp_(hidden.detach().mean(0), 0.1)
        out: Tensor = self.head(hidden - (hidden.mean(0) if self.training else self.mean))
        return out


def test_a_module_that_writes_into_a_frozen_buffer_is_refused() -> None:
    """All clients would move the one that they share, and the models that come out would not have it."""
    with pytest.raises(ValueError, match="model: Following writes into its buffer mean in training, which adapters freeze"):
        fedfew.train(federation(), Following, "fedavg", adapters="lora", rounds=1)
    run = fedfew.train(federation(), Following, "fedavg", freeze="body", rounds=1)  # in evaluation mode it writes nothing
    assert not run.state.frozen["mean"].any()  # nor did the checks before the first round


def test_batch_norm_without_a_scale_stays_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    x = torch.randn(9, 4)
    module(x)
    expected = module.eval()(x)
    assert torch.equal(adapted(module).train()(x), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, not 0"),
        ({"alpha": 0}, "alpha must be above 0, not 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"average": "sum"}, "average must be 'ab', 'freeze-a' or 'product', not 'sum'"),
        ({"targets": "conv"}, r"targets must be a list of names, as \['conv'\], not a string"),
        ({"targets": ["conv", "query"]}, "no layer in targets is called 'query'; there are conv, first, second"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoRA(**settings).adapt(Net())


def test_what_is_no_adapter_and_what_excludes_another_is_refused() -> None:
    with pytest.raises(TypeError, match=r"adapters must be fedfew.adapters.LoRA\(…\), its text or None, not int"):
        train(fedfew.FedAvg(), adapters=8)
    with pytest.raises(ValueError, match="adapters and freeze='body' exclude each other"):
        train(fedfew.FedAvg(), adapters=LoRA(), freeze="body")
    with pytest.raises(ValueError, match="freeze must be none or body, not 'head'"):
        train(fedfew.FedAvg(), freeze="head")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedfew", "ditto", "fedrep", "ifca", "scaffold"])
def test_engines_agree_and_the_base_is_held_once(name: str) -> None:
    runs = [train(METHODS[name](), adapters=LoRA(rank=RANK), engine=engine, rounds=2) for engine in ("sequential", "stacked")]
    a, b = map(tensors, runs)
    assert_same(a, b, 2e-5)
    assert not any("base" in path for path in a)
    assert runs[0].state.frozen.keys() == {"0.base.weight", "0.base.bias"}


@pytest.mark.slow
@pytest.mark.parametrize("average", ["ab", "freeze-a"])
@pytest.mark.parametrize("engine", ["stacked", "threaded"])
def test_engines_agree_on_convolutions_and_dropout(engine: str, average: str) -> None:
    def run(engine: str) -> dict[str, Tensor]:
        lora = LoRA(rank=RANK, dropout=0.3, average=average)  # type: ignore[arg-type]  # a parameter of the test
        return tensors(train(fedfew.FedFew(models=2), images(), Net, adapters=lora, engine=engine, rounds=2))

    assert_same(run("sequential"), run(engine), 2e-5)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_base_stays_to_the_last_bit_and_the_rest_moves(engine: str) -> None:
    base = Net()
    run = train(fedfew.FedFew(models=2), images(), base, adapters=LoRA(rank=RANK), engine=engine)
    before = adapted(base).state_dict()
    for state in served(run):
        for name, value in state.items():
            assert torch.equal(value, before[name]) != (".lora_" in name or name.startswith("head.")), name


def test_adapters_and_head_are_all_that_is_sent() -> None:
    events: list[str] = []
    run = train(fedfew.FedFew(models=2), adapters=LoRA(rank=RANK), participation=1.0, on_round=lambda p: events.extend(p.events))
    down = int(run.history.last("bytes_down")) // 6
    assert down == 2 * 4 * (ADAPTERS + HEAD)
    trained = ADAPTERS + HEAD
    assert events[0] == f"adapters: {trained} of {trained + 25} numbers are trained and sent; the rest is held once"
    half = cost("fedavg", lambda: adapted(mlp(), average="freeze-a"), federation())
    assert half.bytes_down == 4 * (RANK * HIDDEN + HEAD)


@pytest.mark.parametrize(
    "change",
    [{"rank": 3}, {"alpha": 4.0}, {"dropout": 0.5}, {"targets": ("2",)}, {"train_head": False}, {"average": "freeze-a"}],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_changes_the_outcome(change: dict[str, Any]) -> None:
    def net() -> nn.Module:
        return nn.Sequential(*mlp()[:2], nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, CLASSES))

    first, other = (LoRA(**({"rank": RANK, "alpha": 2.0} | c)) for c in ({}, change))
    runs = [tensors(train(fedfew.FedAvg(), model=net, adapters=lora)) for lora in (first, other)]
    assert differ(*({name: t for name, t in run.items() if name.startswith("history/")} for run in runs))


def test_averaging_a_and_b_apart_is_biased_and_freezing_a_is_exact() -> None:
    """After one round: the product of the server's factors against the mean of the clients' products."""
    data = federation()
    share = data.train.count.double() / data.train.count.sum()
    error = {}
    for average in ("ab", "freeze-a"):
        lora = LoRA(rank=RANK, average=average)  # type: ignore[arg-type]  # one of the two
        settings: dict[str, Any] = {"model": mlp(), "adapters": lora, "rounds": 1, "local_epochs": 8, **PLAIN}
        server = train(fedfew.FedAvg(), data, **settings).models[0][0]
        clients = served(train(fedfew.LocalOnly(), data, **settings))
        products = torch.stack([state["0.lora_B.weight"] @ state["0.lora_A.weight"] for state in clients]).double()
        mean = torch.einsum("i,ijk->jk", share, products)
        found = (server.lora_B.weight @ server.lora_A.weight).detach().double()
        error[average] = float((found - mean).norm() / mean.norm())
    assert error["freeze-a"] < 1e-6
    assert error["ab"] > 0.05


@pytest.mark.slow
def test_a_run_with_adapters_is_found_again_and_goes_on(tmp_path: Path) -> None:
    lora = LoRA(rank=RANK, targets=["0"])
    run = train(fedfew.FedFew(models=2), adapters=lora, folder=tmp_path / "run")
    x, _ = federation().test.of(0)
    loaded = fedfew.load(tmp_path / "run", mlp)
    export.write(run, tmp_path / "models")
    for found in (loaded, export.read(tmp_path / "models", mlp)):
        assert torch.equal(found.model_of(1)(x), run.model_of(1)(x))
    resumed = train(fedfew.FedFew(models=2), adapters=lora, folder=tmp_path / "run", resume=True, rounds=4)
    assert_same(tensors(resumed), tensors(train(fedfew.FedFew(models=2), adapters=lora, rounds=4)))
    with pytest.raises(ValueError, match="adapters"):
        train(fedfew.FedFew(models=2), folder=tmp_path / "run", resume=True, rounds=5)
    events: list[str] = []
    other = LoRA(rank=RANK, targets=["0"], alpha=4)
    begun = train(fedfew.FedFew(models=2), adapters=other, start=run, rounds=5, on_round=lambda p: events.extend(p.events))
    assert begun.round == 5
    assert any("another part of the model is trained (adapters, freeze)" in event for event in events)


class Conv1D(nn.Module):
    """As GPT-2's of transformers: a linear layer whose weight is [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = nf, nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def test_a_layer_with_a_transposed_weight_by_hand() -> None:
    layer = moved(LoRA(rank=RANK, alpha=3, train_head=False).adapt(Conv1D(HIDDEN, FEATURES)))
    assert isinstance(layer, AdaptedLayer)
    x, s, a, b = torch.randn(7, FEATURES), 3 / RANK, layer.lora_A.weight, layer.lora_B.weight
    expected = x @ (layer.base.weight + s * (b @ a).T) + layer.base.bias
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(merged(layer)(x), expected)


class Tied(nn.Module):
    """Its head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Linear(HIDDEN, FEATURES), nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, FEATURES)
        self.head.weight, self.head.bias = self.embed.weight, self.embed.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x))


def test_a_head_that_is_another_layer_too_stays_frozen_and_a_line_says_so() -> None:
    part = TrainedPart(LoRA(rank=RANK, targets=["inner"]))
    module = part.of(Tied)()
    assert {name for name, p in module.named_parameters() if p.requires_grad} == {"inner.lora_A.weight", "inner.lora_B.weight"}
    assert part.notes(module)[1] == "adapters: the head, head, shares its weights with another layer and stays frozen"
    plain = TrainedPart(LoRA(rank=RANK))
    assert len(plain.notes(plain.of(mlp)())) == 1
