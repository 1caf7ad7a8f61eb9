"""Models as users bring them: outputs in other forms than a tensor, instances, and models that do not fit the data."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedfew
from fedfew import export
from fedfew.federation import Federation
from tests.methods.small import CLASSES, FEATURES, assert_same, federation, mlp, tensors, train


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "object": lambda logits: Output(logits),
    "dict": lambda logits: {"hidden": logits * 2, "logits": logits},
    "tuple": lambda logits: (logits, logits * 2),
}


class Wrapped(nn.Module):
    """The same network, whose outputs are in another form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.net, self.form = mlp(), form

    def forward(self, x: Tensor) -> Any:
        return FORMS[self.form](self.net(x))


class Plain(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found


@pytest.mark.parametrize("engine", ["sequential", "stacked", "threaded"])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_in_other_forms_train_as_a_tensor_does(form: str, engine: str) -> None:
    plain = train(fedfew.FedFew(models=2), model=lambda: Plain(form), engine=engine, rounds=1)
    other = train(fedfew.FedFew(models=2), model=lambda: Wrapped(form), engine=engine, rounds=1)
    assert_same(tensors(plain), tensors(other))


def test_a_run_an_export_and_a_mixture_of_such_models_predict(tmp_path: Path) -> None:
    run = train(fedfew.FedFew(models=2), model=lambda: Wrapped("dict"), serve="mixture", folder=tmp_path / "run")
    x = federation().test.of(0)[0]
    expected = run.predict_proba(x, 0)
    again = fedfew.load(tmp_path / "run", lambda: Wrapped("dict"))
    np.testing.assert_allclose(again.predict_proba(x, 0), expected)
    export.write(run, tmp_path / "models")
    np.testing.assert_allclose(export.read(tmp_path / "models", lambda: Wrapped("dict")).predict_proba(x, 0), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(FEATURES, 2), "gives 2 outputs per sample, but the data have 3 classes: its last layer must have 3"),
        (lambda: nn.Linear(FEATURES, 8), "gives 8 outputs per sample, but the data have 3 classes: its last layer must have 3"),
        (lambda: nn.Unflatten(1, (2, 2)), r"gives \[2, 2, 2\] for 2 samples, but \[2, 3\] is needed: one output per class"),
        (lambda: nn.Linear(9, CLASSES), r"Linear fails on samples of shape \[4\] of float32: «mat1 and mat2"),
        (lambda: mlp().double(), r"has parameters of float64, but samples are float32.*make it float32"),
        (
            lambda: nn.LazyLinear(CLASSES),
            "model: LazyLinear has lazy layers, whose parameters have no shape yet: call it on a sample",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused_in_a_sentence(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(fedfew.FedAvg(), model=model)


def test_what_is_no_model_is_refused_in_a_sentence() -> None:
    with pytest.raises(TypeError, match="model must be a name, a module or a function without arguments that returns one"):
        train(fedfew.FedAvg(), model=lambda: 3)
    with pytest.raises(TypeError, match="arguments that returns a module; of_width: missing a required argument: 'width'"):
        train(fedfew.FedAvg(), model=of_width)
    with pytest.raises(TypeError, match="Silent returned str, in which there is no tensor of outputs"):
        train(fedfew.FedAvg(), model=Silent)


def of_width(width: int) -> nn.Module:
    return nn.Linear(FEATURES, width)


class Silent(nn.Linear):
    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> str:  # type: ignore[override]  # wrong on purpose
        return "logits"


def test_an_instance_is_what_all_models_start_from(tmp_path: Path) -> None:
    net = mlp()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    events: list[str] = []
    still = train(
        fedfew.FedFew(models=2),
        model=net,
        rounds=1,
        lr=1e-30,
        folder=tmp_path / "run",
        on_round=lambda p: events.extend(p.events),
    )
    for model in still.models:
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert any("all 2 models start from the same weights" in event for event in events)
    trained = train(fedfew.FedAvg(), model=net, rounds=1)
    assert not torch.equal(trained.models[0].state_dict()["0.weight"], before["0.weight"])
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())  # the instance itself is not trained
    again = fedfew.load(tmp_path / "run", net)
    assert torch.equal(again.models[0].state_dict()["0.weight"], before["0.weight"])
    assert torch.equal(pickle.loads(pickle.dumps(again)).models[0].state_dict()["0.weight"], before["0.weight"])


def test_a_function_that_returns_one_and_the_same_module_serves_several_models(tmp_path: Path) -> None:
    """Each model has a module of its own, so predictions are those that were scored; a line says that they start alike."""
    net, events = mlp(), list[str]()
    run = train(fedfew.FedFew(models=2), model=lambda: net, rounds=3, serve="mixture", on_round=lambda p: events.extend(p.events))
    assert any("all 2 models start from the same weights" in event for event in events)
    other = train(fedfew.FedFew(models=2), rounds=3, serve="mixture")
    other.save(tmp_path / "run")
    export.write(other, tmp_path / "export")
    x, y = federation().test.of(1)
    for one in (fedfew.load(tmp_path / "run", lambda: net), export.read(tmp_path / "export", lambda: net)):
        np.testing.assert_array_equal(one.predict_proba(x, client=1), other.predict_proba(x, client=1))
        assert not torch.equal(one.models[0].state_dict()["0.weight"], one.models[1].state_dict()["0.weight"])
    assert (run.predict(x, client=1) == y.numpy()).mean() == pytest.approx(run.scores("served")[1])


def token_federation(x: np.ndarray) -> Federation:
    return Federation.from_arrays([(x, np.arange(len(x)) % 2)], [(x, np.arange(len(x)) % 2)])


@pytest.mark.slow
def test_token_ids_get_a_model_for_texts_and_a_line_says_so() -> None:
    events: list[str] = []
    data = token_federation(np.arange(48).reshape(8, 6))
    run = fedfew.train(data, method="fedavg", rounds=1, device="cpu", on_round=lambda progress: events.extend(progress.events))
    assert run.settings["model"] == "textcnn"
    assert events[0] == "model: textcnn in place of mlp, since the samples are token ids"


def test_whole_numbers_that_cannot_be_token_ids_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"whole numbers of shape \[2\], which are read as token ids. If they are features"):
        fedfew.train(token_federation(np.arange(16).reshape(8, 2)), method="fedavg", rounds=1, device="cpu")


def test_a_model_of_one_number_may_leave_out_its_axis() -> None:
    class OneNumber(nn.Linear):
        def __init__(self) -> None:
            super().__init__(FEATURES, 1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, 0]

    x = np.ones((6, FEATURES), np.float32)
    data = Federation.from_arrays([(x, np.arange(6) / 4)], [(x, np.arange(6) / 4)])
    runs = [
        fedfew.train(data, model, "fedavg", rounds=1, lr=0.1, engine=engine, device="cpu")
        for model, engine in ((OneNumber, "sequential"), (OneNumber, "stacked"), (lambda: nn.Linear(FEATURES, 1), "stacked"))
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(run.history["served_loss"], runs[0].history["served_loss"], rtol=1e-5)


@pytest.mark.slow
def test_a_transformer_of_hugging_face() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(vocab_size=60, dim=8, hidden_dim=8, n_layers=1, n_heads=2, num_labels=2)
    data = token_federation(np.arange(48).reshape(8, 6))

    def model() -> nn.Module:
        made: nn.Module = transformers.DistilBertForSequenceClassification(config)
        return made

    run = fedfew.train(data, model, "fedavg", rounds=1, lr=0.1, engine="sequential", device="cpu")
    assert np.isfinite(run.history.last("served_loss")).all()
    assert run.predict(np.arange(6)[None], 0).shape == (1,)


def test_a_module_of_timm() -> None:
    timm = pytest.importorskip("timm")
    x = np.random.default_rng(0).normal(size=(6, 3, 32, 32)).astype(np.float32)
    data = Federation.from_arrays([(x, np.arange(6) % 2)], [(x, np.arange(6) % 2)])
    run = fedfew.train(
        data, lambda: timm.create_model("test_convnext", num_classes=2), "fedavg", rounds=1, engine="sequential", device="cpu"
    )
    assert np.isfinite(run.history.last("served_loss")).all()


@pytest.mark.parametrize("engine", ["sequential", "stacked", "threaded"])
@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"clip_gradient": 0.1}, {"weight_decay": 0.01}], ids=str)
def test_sparse_embeddings_train_as_dense_ones_do(engine: str, settings: dict[str, Any]) -> None:
    x = torch.randint(9, (12, 5), generator=torch.Generator().manual_seed(0))
    data = Federation.from_arrays([(x, x[:, 0] % CLASSES)] * 2, [(x, x[:, 0] % CLASSES)] * 2, classes=CLASSES)

    def embedded(sparse: bool) -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(20, CLASSES))

    sparse, dense = (train(fedfew.FedAvg(), data, lambda of=of: embedded(of), engine=engine, **settings) for of in (True, False))
    assert_same(tensors(sparse), tensors(dense))


def test_a_softmax_at_the_end_is_reported():
    def events_of(model: Callable[[], nn.Module]) -> str:
        events: list[str] = []
        fedfew.train(federation(), model, "fedavg", rounds=1, on_round=lambda progress: events.extend(progress.events))
        return " ".join(events)

    assert "Sequential gives probabilities, but the loss" in events_of(lambda: nn.Sequential(mlp(), nn.Softmax(1)))
    assert "probabilities" not in events_of(mlp)
