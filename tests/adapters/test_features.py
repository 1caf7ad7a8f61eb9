"""freeze="body": the head is trained on features that are computed once, with the same outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import fedfew
from fedfew import export
from fedfew.adapters import LoRA, cached
from fedfew.adapters.cached import on_features
from fedfew.config import TrainConfig
from tests.methods.small import CLASSES, FEATURES, assert_same, differ, federation, tensors, train

HIDDEN = 5


class Counting(nn.Module):
    """A body with BatchNorm and dropout, and a head inside of another module; samples that pass are counted."""

    passed: ClassVar[int] = 0

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout(dropout))
        self.top = nn.ModuleDict({"head": nn.Linear(HIDDEN, CLASSES)})

    def forward(self, x: Tensor) -> Tensor:
        Counting.passed += len(x)
        return self.top["head"](self.body(x).tanh())


def used() -> nn.Module:
    """A module whose running statistics are not those of a new one."""
    module = Counting()
    module(3 * torch.randn(20, FEATURES) + 1)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_outcome_is_that_of_the_head_within_a_frozen_body_in_evaluation_mode(engine: str) -> None:
    base = used()
    cached = train(fedfew.FedFew(models=2), model=base, freeze="body", engine=engine)
    base.body[2].p = 0.0  # evaluation mode: no dropout. LoRA without layers freezes BatchNorm's statistics as well
    whole = train(fedfew.FedFew(models=2), model=base, adapters=LoRA(targets=[]), engine="sequential")
    assert_same(tensors(cached), tensors(whole), 1e-5)
    assert cached.state.frozen.keys() == whole.state.frozen.keys()


def test_every_sample_passes_the_body_once_whatever_the_rounds() -> None:
    data = federation()
    samples = len(data.train.y) + len(data.test.y)
    passed = []
    for settings in ({"rounds": 1}, {"rounds": 6}, {"rounds": 6, "freeze": "none", "adapters": LoRA(targets=[])}):
        Counting.passed = 0
        train(fedfew.FedFew(models=2), data, model=Counting, **({"freeze": "body"} | settings))
        passed.append(Counting.passed)
    assert passed[0] == passed[1] == samples + 16  # eight checks pass two samples each beforehand
    assert passed[2] > 20 * samples


def test_features_are_computed_batch_by_batch_in_the_order_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    data, module = federation(), used()
    features = [on_features(data, lambda: module, torch.device("cpu"))[0]]
    monkeypatch.setattr(cached, "BATCH", 3)
    features.append(on_features(data, lambda: module, torch.device("cpu"))[0])
    expected = module.eval().body(data.train.x).tanh()
    for found in features:
        torch.testing.assert_close(found.train.x, expected)
        assert len(found.test.x) == len(data.test.x)
    assert not module.top["head"]._forward_pre_hooks
    scaled = Scaled()
    with pytest.raises(ValueError, match="are not those of its last linear layer"):
        on_features(data, lambda: scaled, torch.device("cpu"))
    assert not scaled.top["head"]._forward_pre_hooks


def test_the_recipe_strong_does_not_augment_them() -> None:
    x = torch.rand(12, 3, 4, 4)
    data = fedfew.Federation.from_arrays([(x, torch.arange(12) % 2)] * 2, [(x, torch.arange(12) % 2)] * 2, classes=2)

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(48, HIDDEN), nn.Linear(HIDDEN, 2))

    settings: dict[str, Any] = {"recipe": "strong", "rounds": 1, "device": "cpu", "engine": "sequential"}
    run = fedfew.train(data, net, fedfew.FedAvg(), freeze="body", **settings)
    assert (run.settings["augment"], run.settings["server_average"]) == ("none", 0.9)
    by_config = fedfew.train(data, net, fedfew.FedAvg(), config=TrainConfig(freeze="body"), **settings)
    assert by_config.settings["augment"] == "none"
    assert fedfew.train(data, net, fedfew.FedAvg(), **settings).settings["augment"] == "crop-flip"


def test_what_is_served_is_the_whole_model(tmp_path: Path) -> None:
    run = train(fedfew.FedFew(models=2), model=Counting, freeze="body", folder=tmp_path / "run")
    x, y = federation().test.of(1)
    served = run.model_of(1)
    accuracy = float((served(x).argmax(1) == y).float().mean())
    assert accuracy == pytest.approx(float(run.scores("served")[1]))
    export.write(run, tmp_path / "models")
    for found in (fedfew.load(tmp_path / "run", Counting), export.read(tmp_path / "models", Counting)):
        assert torch.equal(found.model_of(1)(x), served(x))
        assert (found.predict(x.numpy(), 1) == served(x).argmax(1).numpy()).all()
    resumed = train(fedfew.FedFew(models=2), model=Counting, freeze="body", folder=tmp_path / "run", resume=True, rounds=5)
    assert_same(tensors(resumed), tensors(train(fedfew.FedFew(models=2), model=Counting, freeze="body", rounds=5)))


def test_freezing_changes_the_outcome_and_validation_samples_become_features_too() -> None:
    data = federation((8, 10, 12))
    runs = [tensors(train(fedfew.FedAvg(), data, model=lambda: Counting(0.0), freeze=freeze)) for freeze in ("none", "body")]
    assert differ(*({name: t for name, t in run.items() if name.startswith("history/")} for run in runs))
    split = replace(data, val=data.test)
    assert train(fedfew.FedAvg(), split, model=Counting, freeze="body", keep="best").round == 3


class Scaled(Counting):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Normalised(nn.Module):
    """A body that normalises by what is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.body(x)))
        return out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": Normalised, "batch_size": 9}, "what Normalised makes of a sample depends on the others in its batch"),
        ({"model": Scaled}, "the outputs of Scaled are not those of its last linear layer, top.head, alone"),
        ({"mixup": 0.2}, "mixup is 0.2, but freeze='body' computes features once: it must be 0"),
        ({"model": lambda: nn.Linear(FEATURES, CLASSES)}, "is the whole model, nothing is left for the body"),
    ],
)
def test_what_cannot_be_trained_on_features_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(fedfew.FedAvg(), **({"model": Counting, "freeze": "body"} | settings))
