"""adapters and freeze as settings: one text in flags, files, studies and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

import fedfew
from fedfew.adapters import LoRA
from fedfew.config import TrainConfig
from fedfew.studies.key import run_key
from fedfew.studies.plan import cells
from fedfew.studies.study import StudyError
from fedfew.training.resolve import resolve
from tests.cli.small import TINY
from tests.helpers import call, refused, same_run
from tests.methods.small import assert_same, tensors, train
from tests.studies.small import study

HIDDEN, CLASSES, PIXELS = 64, 10, 64  # of the digits and their mlp
HEAD = HIDDEN * CLASSES + CLASSES


@pytest.mark.parametrize(
    ("text", "lora"),
    [
        ("lora", LoRA()),
        ("lora:rank=2,alpha=4", LoRA(rank=2, alpha=4)),
        ("lora:alpha=0.5,dropout=0.1", LoRA(alpha=0.5, dropout=0.1)),
        ("lora:targets=query+blocks.*.value", LoRA(targets=["query", "blocks.*.value"])),
        ("lora:targets=", LoRA(targets=[])),
        ("lora:train_head=false,average=freeze-a", LoRA(train_head=False, average="freeze-a")),
    ],
)
def test_a_text_is_a_lora_and_a_lora_is_that_text(text: str, lora: LoRA) -> None:
    assert LoRA.parse(text) == lora
    assert str(lora) == text


def test_settings_that_are_equal_are_written_in_the_same_way() -> None:
    alike = [resolve({"adapters": text}, {}) for text in ("lora", "lora:", "lora:rank=8", "lora: alpha = 16.0, rank=8")]
    assert {settings.adapters for settings in alike} == {"lora"}
    assert len({run_key(settings) for settings in alike}) == 1
    other = resolve({"adapters": "lora:rank=9"}, {})
    assert run_key(other) not in {run_key(alike[0]), run_key(resolve({}, {}))}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adapters": "dora"}, "adapters must be none, lora, or lora with its settings, as lora:rank=8,targets=query.value, not"),
        ({"adapters": "lora:rnk=8"}, "there is no setting of lora called 'rnk'; did you mean 'rank'"),
        ({"adapters": "lora:rank=many"}, "rank in adapters must be a whole number, not 'many'"),
        ({"adapters": "lora:rank=0"}, "rank must be at least 1, not 0"),
        ({"adapters": "lora:average=all"}, "average in adapters must be .*freeze-a.*, not 'all'"),
        ({"adapters": "lora", "freeze": "body"}, "adapters and freeze='body' exclude each other"),
        ({"freeze": "head"}, "freeze must be none or body, not 'head'"),
        ({"freeze": "body", "augment": "flip"}, "augment is 'flip', but freeze='body' computes features once"),
    ],
)
def test_what_cannot_be_is_refused_before_any_data_are_read(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(given, {})


@pytest.mark.parametrize("name", ["a+b", "a,b", ""])
def test_a_target_that_the_text_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="in targets is no name of a layer"):
        LoRA(targets=[name])


def test_the_text_trains_as_the_object_does() -> None:
    runs = [
        train(fedfew.FedAvg(), adapters=adapters, rounds=1) for adapters in ("lora:rank=2", LoRA(rank=2), LoRA(rank=2, alpha=16))
    ]
    for run in runs[1:]:
        assert_same(tensors(run), tensors(runs[0]))
    assert {run.settings["adapters"] for run in runs} == {"lora:rank=2"}
    by_config = train(fedfew.FedAvg(), config=TrainConfig(adapters="lora:rank=2"), rounds=1)
    assert by_config.settings["adapters"] == "lora:rank=2"
    assert train(fedfew.FedAvg(), adapters=None, rounds=1).settings["adapters"] == "none"


def test_a_model_without_layers_for_adapters_says_so() -> None:
    def lines(adapters: LoRA, model: Any) -> list[str]:
        found: list[str] = []
        train(fedfew.FedAvg(), model=model, adapters=adapters, rounds=1, on_round=lambda p: found.extend(p.events))
        return [line for line in found if line.startswith("adapters: the model has no layer for them besides the head")]

    assert len(lines(LoRA(), lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)))) == 1
    assert lines(LoRA(), "mlp") == lines(LoRA(targets=[]), "mlp") == []


def test_adapters_on_adapters_are_refused() -> None:
    with pytest.raises(ValueError, match="the model already has adapters: leave adapters out"):
        LoRA().adapt(LoRA().adapt(fedfew.models.build("mlp", (4,), 3)))


def test_the_recipe_does_not_augment_what_is_computed_once() -> None:
    strong = {"dataset": "cifar10", "recipe": "strong"}
    assert resolve(strong, {}).augment == "crop-flip"
    assert resolve(strong | {"adapters": "lora"}, {}).augment == "crop-flip"
    frozen = resolve(strong | {"freeze": "body"}, {})
    assert (frozen.augment, frozen.server_optimizer) == ("none", "momentum")


ADAPTERS, BODY = ["--adapters", "lora:rank=2"], ["--freeze", "body"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("flags", "sent"), [(ADAPTERS, 2 * (PIXELS + HIDDEN) + HEAD), (BODY, HEAD)])
def test_run_records_and_shows_them(flags: list[str], sent: int) -> None:
    out = call("run", *TINY, "--rounds", "1", "--method", "fedavg", *flags, "--folder", "r").stdout
    assert f"fedavg, {flags[0][2:]} {flags[1]}, round 1" in " ".join(out.split())
    assert f"{flags[0][2:]}: {sent:,} of" in out
    config = yaml.safe_load(Path("r/config.yaml").read_text())
    assert config[flags[0][2:]] == flags[1]
    assert json.loads(Path("r/costs.json").read_text())["bytes_down"] == 4 * sent
    assert f", {flags[0][2:]} {flags[1]}," in " ".join(call("show", "r").stdout.split())


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("flags", [ADAPTERS, BODY])
def test_run_goes_on_with_them(flags: list[str]) -> None:
    common = ["run", *TINY, "--method", "fedavg", *flags]
    call(*common, "--folder", "r")
    call("run", "--resume", "--folder", "r", "--rounds", "3")
    call(*common, "--rounds", "3", "--folder", "whole")
    same_run(fedfew.load("r"), fedfew.load("whole"))
    other = ["--rounds", "4", flags[0], "none"]
    assert "belongs to another run" in refused("run", "--resume", "--folder", "r", *other)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_compare_counts_what_is_sent() -> None:
    document = json.loads(
        call("compare", *TINY, "--methods", "fedavg", "--seeds", "1", "--adapters", "lora:rank=2", "--json").stdout
    )
    assert document["methods"]["fedavg"]["costs"]["bytes_down"] == 4 * (2 * (PIXELS + HIDDEN) + HEAD)


def test_studies_take_them_in_every_layer() -> None:
    base = {"model": "mlp", "freeze": "body"}
    rows = {
        "head": {"method": "fedavg"},
        "LoRA": {"method": "fedavg", "freeze": "none", "adapters": "lora:rank=2,alpha=16"},
    }
    found = cells(study(base=base, rows=rows))
    assert [(cell.settings.adapters, cell.settings.freeze) for cell in found] == [("none", "body"), ("lora:rank=2", "none")]
    ranks = cells(study(base={"model": "mlp"}, grid={"adapters": ["lora:rank=2", "lora:rank=4"]}))
    assert {cell.settings.adapters for cell in ranks} == {"lora:rank=2", "lora:rank=4"}
    with pytest.raises(StudyError, match=r"rows → LoRA: there is no setting of lora called 'ranks'"):
        cells(study(rows={"LoRA": {"method": "fedavg", "adapters": "lora:ranks=2"}}))


@pytest.mark.parametrize(
    ("settings", "method", "expected"),
    [
        ({"adapters": LoRA(rank=1), "local_epochs": 2}, fedfew.FedFew(models=2), True),
        ({"adapters": LoRA(rank=1), "local_epochs": 1}, fedfew.FedFew(models=2), False),
        ({"adapters": LoRA(rank=1), "local_epochs": 2}, fedfew.FedFew(models=2, loss_at="received"), False),
        ({"adapters": LoRA(rank=1), "local_epochs": 2}, fedfew.FedFew(models=1), False),
        ({"adapters": LoRA(rank=1), "local_epochs": 2}, fedfew.FedAvg(), False),
        ({"local_epochs": 2}, fedfew.FedFew(models=2), False),
    ],
)
def test_a_line_where_losses_do_not_tell_models_apart(settings: dict[str, Any], method: Any, expected: bool) -> None:
    lines: list[str] = []
    train(method, rounds=1, **settings, on_round=lambda progress: lines.extend(progress.events))
    found = [line for line in lines if line.startswith("loss_at is training")]
    assert len(found) == expected
    assert all("2 local epochs" in line and line.endswith("Set loss_at='received'") for line in found)
