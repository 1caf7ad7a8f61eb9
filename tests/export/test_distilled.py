"""An export of one model per client, distilled from its mixture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedfew
from fedfew import export
from fedfew.evaluation.distillation import distill
from fedfew.models.served import ServedModel
from tests.cli.small import TINY
from tests.helpers import call, refused


@pytest.fixture(scope="module")
def data() -> fedfew.Federation:
    return fedfew.data.load("digits", clients=3, sample=240, partition="dirichlet:1")


def trained(data: fedfew.Federation, **settings: object) -> fedfew.Run:
    common = {"rounds": 3, "lr": 0.1, "batch_size": 10, "serve": "mixture", "temperature": 5.0, "engine": "sequential"}
    return fedfew.train(data, "mlp", fedfew.FedFew(models=2), **(common | settings))


@pytest.mark.parametrize("label_prior", ["none", "client"])
def test_each_client_gets_its_student_and_the_card_has_both_accuracies(data, label_prior: str, tmp_path: Path) -> None:
    run = trained(data, label_prior=label_prior)
    place = export.write_distilled(run, data, tmp_path / "e", epochs=3)
    found = export.read(place)
    students = [distill(run, client, data, epochs=3) for client in range(3)]
    assert len(found.models) == 3
    for client, student in enumerate(students):
        x, y = data.test.of(client)
        with torch.no_grad():
            logits, mixed = found.model_of(client)(x), run.model_of(client)(x)
            assert torch.equal(logits, student.module(x))
        row = found.card["models"][client]
        assert row["accuracy"] == pytest.approx(float((logits.argmax(1) == y).double().mean()))
        assert row["mixture_accuracy"] == pytest.approx(float((mixed.argmax(1) == y).double().mean()))
        assert row["clients"] == 1
        assert isinstance(run.model_of(client), ServedModel)
    summary = found.card["distilled"]
    assert summary["epochs"] == 3
    assert summary["accuracy"] == pytest.approx(sum(student.accuracy for student in students) / 3)
    assert summary["mixture_accuracy"] == pytest.approx(float(run.history.last("served_accuracy").mean()), abs=1e-6)
    assert summary["agreement"] == pytest.approx(sum(student.agreement for student in students) / 3)
    page = (place / "README.md").read_text()
    assert "served: the mixture that a model here is distilled from. adapted:" in page
    assert "distilled from its mixture of the models trained (3 epochs" in page
    assert (
        f"their mean test accuracy is {summary['accuracy']:.1%}, that of the mixtures {summary['mixture_accuracy']:.1%}" in page
    )
    assert "| model | clients that use it | accuracy | of its mixture | file | SHA-256 |\n|---|---|---|---|---|---|\n" in page
    assert f"| {found.card['models'][1]['accuracy']:.1%} | {found.card['models'][1]['mixture_accuracy']:.1%} |" in page


def test_epochs_change_the_models_and_what_cannot_be_is_answered(data, tmp_path: Path) -> None:
    run = trained(data, rounds=1)
    one, two = (export.read(export.write_distilled(run, data, tmp_path / str(n), epochs=n)) for n in (1, 2))
    assert not torch.equal(one.models[0][1].weight, two.models[0][1].weight)
    other = fedfew.data.load("digits", clients=3, sample=240, partition="dirichlet:1", seed=7)
    with pytest.raises(ValueError, match="the run was made with other data than this federation"):
        export.write_distilled(run, other, tmp_path / "other")
    with pytest.raises(ValueError, match="epochs must be ≥ 1, not 0"):
        export.write_distilled(run, data, tmp_path / "none", epochs=0)
    with pytest.raises(ValueError, match="uses one model, not a mixture"):
        export.write_distilled(trained(data, rounds=1, serve="best"), data, tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_the_command(here: Path, data: fedfew.Federation) -> None:
    call("run", *TINY, "--models", "2", "--recipe", "plain", "--serve", "mixture", "--folder", "r")
    out = " ".join(call("export", "r", "-o", "e", "--distil").stdout.split())
    card = export.read("e").card
    assert f"mean test accuracy {card['distilled']['accuracy']:.1%}, that of the mixtures" in out
    assert len(card["models"]) == 4
    assert "cannot be combined with --anonymous" in refused("export", "r", "-o", "f", "--distil", "--anonymous")
    Path("r/config.yaml").unlink()
    assert "r has no config.yaml" in refused("export", "r", "-o", "f", "--distil")
