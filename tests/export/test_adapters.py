"""An export of adapters alone: read into the base model, chosen among by a new client, and refused where the base is another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedfew
from fedfew import export
from fedfew.adapters import LoRA
from tests.helpers import call, refused
from tests.methods.small import CLASSES, FEATURES, federation, mlp, train

BASE = mlp()


def base() -> nn.Module:
    """What a new client gives as ``--model tests.export.test_adapters:base``: the same parameters each time."""
    module = mlp()
    module.load_state_dict(BASE.state_dict())
    return module


def other() -> nn.Module:
    module = base()
    with torch.no_grad():
        module[0].bias[3] += 1e-6
    return module


def trained(lora: LoRA | None = None, **settings: Any) -> fedfew.Run:
    return train(fedfew.FedFew(models=2), model=base, adapters=lora or LoRA(rank=2, alpha=2), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lora", [LoRA(rank=2), LoRA(rank=2, train_head=False), LoRA(rank=2, average="freeze-a")], ids=["head", "no head", "freeze-a"]
)
def test_adapters_come_back_in_the_base_model(lora: LoRA, tmp_path: Path) -> None:
    run = trained(lora)
    place = export.write_adapters(run, tmp_path / "a", "base-of-mine")
    found = export.read(place, base)
    x, _ = federation().test.of(1)
    for one, model in zip(found.models, run.models, strict=True):
        assert torch.equal(one(x), model(x))
        assert not one.training
    assert torch.equal(found.model_of(1)(x), run.model_of(1)(x))
    assert json.loads((place / "routes.json").read_text()) == {str(i): f"adapter-{k}" for i, k in enumerate(run.choice.tolist())}
    names = {
        "0.lora_A.weight",
        "0.lora_B.weight",
        *(["2.weight", "2.bias"] if lora.train_head else ["2.lora_A.weight", "2.lora_B.weight"]),
    }
    assert set(load_file(place / "adapter-0" / "adapter_model.safetensors")) == {f"base_model.model.{name}" for name in names}
    head = None if not lora.train_head else "2"
    config = json.loads((place / "adapter-1" / "adapter_config.json").read_text())
    layers = ["0"] if lora.train_head else ["0", "2"]
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["target_modules"]) == ("LORA", 2, 16.0, layers)
    assert config["modules_to_save"] == (None if head is None else ["2"])
    about = found.card["adapters"]
    assert (about["base"], about["rank"], about["head"]) == ("base-of-mine", 2, head)


def test_another_base_model_is_refused(tmp_path: Path) -> None:
    place = export.write_adapters(trained(rounds=1), tmp_path / "a", "base-of-mine")
    with pytest.raises(ValueError, match=r"is not the one that the adapters were trained with \(base-of-mine\)"):
        export.read(place, other)
    with pytest.raises(ValueError, match=r"does not fit the base model given: 0\.lora_B\.weight, 2\.weight$"):
        export.read(place, lambda: nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES)))
    with pytest.raises(ValueError, match="pass it as model="):
        export.read(place)


def test_an_adapter_that_lacks_a_layer_or_was_altered_is_refused(tmp_path: Path) -> None:
    place = export.write_adapters(trained(rounds=1), tmp_path / "a")
    file = place / "adapter-1" / "adapter_model.safetensors"
    whole = load_file(file)
    save_file({name: t for name, t in whole.items() if "lora_B" not in name}, file)
    with pytest.raises(ValueError, match=r"adapter-1/adapter_model\.safetensors is not as it was written"):
        export.read(place, base)
    file.write_bytes(b"no tensors")
    _new_hashes(place)
    with pytest.raises(ValueError, match=r"adapter_model.safetensors is damaged \("):
        export.read(place, base)
    save_file({name: t for name, t in whole.items() if "lora_B" not in name}, file)
    _new_hashes(place)
    with pytest.raises(ValueError, match=r"does not fit the base model given: 0\.lora_B\.weight$"):
        export.read(place, base)


def _new_hashes(place: Path) -> None:
    """What somebody does who alters the card as well."""
    card = export.read_card(place)
    card["files"] = {name: export.reading.sha256_of(place / name) for name in card["files"]}
    (place / "card.json").write_text(json.dumps(card))


@pytest.mark.usefixtures("here")
def test_select_has_the_same_figures_as_on_whole_models() -> None:
    run = trained(label_prior="client", serve="mixture", folder="run")
    x, y = federation().train.of(4)
    np.savez("mine.npz", x=x.numpy(), y=y.numpy())
    own = ["--model", "tests.export.test_adapters:base"]
    call("export", "run", "-o", "whole", *own)
    printed = call("export", "run", "-o", "adapters", "--peft", "base-of-mine", *own).stdout
    assert "2 adapters" in printed
    reason = (
        "vLLM does not take these adapters: the base model is not one of transformers; the head 2 was trained (modules_to_save)"
    )
    assert reason in printed
    assert "not take these adapters: the base model is not one of transformers" in Path("adapters/README.md").read_text()
    documents = [
        json.loads(call("select", folder, "--data", "mine.npz", *own, "--adapt-epochs", "2", "--json").stdout)
        for folder in ("whole", "adapters")
    ]
    sources = [document.pop("source") for document in documents]
    assert sources[0] != sources[1]
    assert documents[0] == documents[1]
    losses = [model["loss"] for model in documents[1]["models"]]
    assert documents[1]["model"] == int(np.argmin(losses))
    assert "pass it as model=" in refused("select", "adapters", "--data", "mine.npz")
    wrong = ["--model", "tests.export.test_adapters:other"]
    assert "is not the one that the adapters were trained with" in refused("select", "adapters", "--data", "mine.npz", *wrong)
    routes = json.loads(Path("adapters/routes.json").read_text())
    assert run.state.mixture is not None
    for i, weights in enumerate(run.state.mixture.tolist()):
        assert routes[str(i)] == pytest.approx({"adapter-0": weights[0], "adapter-1": weights[1]})
    mixed = [fedfew.export.read(folder, base).for_new_client(x.numpy(), y.numpy()) for folder in ("whole", "adapters")]
    assert (mixed[0].predict_proba(x.numpy()) == mixed[1].predict_proba(x.numpy())).all()


@pytest.mark.usefixtures("here")
def test_nothing_that_the_folder_names_is_imported() -> None:
    place = export.write_adapters(trained(rounds=1), "a")
    card = export.read_card(place)
    card["model"]["name"] = "antigravity:fly"
    (place / "card.json").write_text(json.dumps(card))
    np.savez("mine.npz", x=np.zeros((9, FEATURES), np.float32), y=np.arange(9) % CLASSES)
    assert "pass it as model=" in refused("select", "a", "--data", "mine.npz")
    import sys

    assert "antigravity" not in sys.modules


def test_a_model_by_name_needs_no_factory_since_the_seed_gives_its_base(tmp_path: Path) -> None:
    run = train(fedfew.FedFew(models=2), model="mlp", adapters=LoRA(rank=2), rounds=1)
    found = export.read(export.write_adapters(run, tmp_path / "a"))
    x, _ = federation().test.of(0)
    assert torch.equal(found.models[1](x), run.models[1](x))


def test_an_anonymous_export_has_no_routes_and_nothing_is_overwritten(tmp_path: Path) -> None:
    run = trained(rounds=1)
    place = export.write_adapters(run, tmp_path / "a", anonymous=True)
    assert not (place / "routes.json").exists()
    assert not (place / "clients.safetensors").exists()
    assert "routes.json" not in (place / "README.md").read_text()
    with pytest.raises(ValueError, match="already holds an export: replace it"):
        export.write_adapters(run, place)
    export.write_adapters(run, place, force=True)
    assert "`routes.json` has the adapter of each client" in (place / "README.md").read_text()


def test_runs_without_adapters_or_with_models_of_the_clients_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no adapters on the server: train with adapters=LoRA\(…\), or a model of peft's"):
        export.write_adapters(train(fedfew.FedAvg(), rounds=1), tmp_path / "a")
    with pytest.raises(ValueError, match="clients of ditto use models of their own, so there are no routes"):
        export.write_adapters(train(fedfew.Ditto(), rounds=1, adapters=LoRA()), tmp_path / "a")


def convolution(**settings: Any) -> nn.Module:
    layer = nn.Conv2d(1, 2, 3, padding="same", **settings)
    return nn.Sequential(nn.Unflatten(1, (1, FEATURES, 1)), layer, nn.Flatten(), nn.Linear(2 * FEATURES, CLASSES))


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = self.two = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(x).tanh()))


@pytest.mark.parametrize(
    ("model", "lora", "message"),
    [
        (
            lambda: convolution(dilation=2),
            LoRA(),
            r"^1 has padding_mode 'zeros' and dilation \(2, 2\), but peft's adapters pad with",
        ),
        (lambda: convolution(padding_mode="circular"), LoRA(), "^1 has padding_mode 'circular'"),
        (TwoNames, LoRA(), "^one and two are one layer, of which peft adapts one alone: write whole models"),
        (mlp, LoRA(targets=[]), "^the head alone was trained, and peft loads no adapters of no layer"),
    ],
)
def test_what_peft_would_compute_otherwise_is_refused(model: Any, lora: LoRA, message: str, tmp_path: Path) -> None:
    run = train(fedfew.FedFew(models=2), model=model, rounds=1, adapters=lora)
    with pytest.raises(ValueError, match=message):
        export.write_adapters(run, tmp_path / "a")
    assert not (tmp_path / "a").exists()
