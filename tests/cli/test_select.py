"""``fedfew select``, as a site that never took part would use it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfew
from fedfew import export
from fedfew.engines import LocalTraining
from fedfew.evaluation.fit import Fit
from fedfew.export import model_file
from tests.cli.small import SMALL
from tests.helpers import call, refused

TINY = ["--rounds", "2", "--models", "2", "--device", "cpu"]

pytestmark = pytest.mark.usefixtures("here")


def document(*words: str) -> dict:
    return json.loads(call("select", *words, "--data", "mine.npz", "--json").stdout)


def test_an_export_and_its_run_give_the_same_choice(run_folder: Path, exported: str) -> None:
    from_export, from_run = document(exported), document(str(run_folder))
    assert from_export.pop("source") == {"card_sha256": export.sha256_of_card(Path(exported))}
    assert from_run.pop("source") == {"run": "digits", "round": 20}
    assert from_export == from_run


def test_adapting_reports_before_and_after_and_writes_the_model(exported: str) -> None:
    told = document(exported, "--adapt-epochs", "3", "-o", "model.safetensors")
    assert told["validation_samples"] == round(0.2 * told["samples"])
    assert told["training"] == {
        "lr": 0.1,
        "batch_size": 10,
        "epochs": 3,
        "optimizer": "sgd",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "loss": "auto",
        "clip_gradient": 0.0,
        "label_smoothing": 0.0,
        "class_weights": "none",
        "mixup": 0.0,
        "augment": "none",
        "precision": "tf32",
        "label_prior": "none",
        "prior_strength": 1.0,
    }
    assert told["adapted"] == (told["after"]["loss"] < told["before"]["loss"])
    assert told["before"]["accuracy"] == told["before"]["score"]
    x, y = np.load("mine.npz")["x"], np.load("mine.npz")["y"]
    joined = fedfew.join(export.read(exported).models, x, y, training=LocalTraining(0.1, 10, local_epochs=3))
    written = fedfew.load_model("model.safetensors").state_dict()
    for name, value in joined.module.state_dict().items():
        assert torch.equal(written[name], value)
    note = model_file.note("model.safetensors")
    assert note["number"] == told["model"]
    assert note["chosen"]["after"] == told["after"]
    assert "model.safetensors already exists" in refused("select", exported, "--data", "mine.npz", "-o", "model.safetensors")
    call("select", exported, "--data", "mine.npz", "-o", "model.safetensors", "--force")


def test_every_knob_of_adapting_matters(exported: str) -> None:
    base = document(exported, "--adapt-epochs", "2")["after"]
    for words in (["--adapt-epochs", "3"], ["--lr", "0.01"], ["--batch-size", "5"], ["--seed", "1"], ["--validation", "0.4"]):
        assert document(exported, "--adapt-epochs", "2", *words)["after"] != base, words


def test_what_is_printed_for_people(exported: str) -> None:
    out = call("select", exported, "--data", "mine.npz", "--adapt-epochs", "2", "-o", "m.safetensors").stdout
    told = document(exported, "--adapt-epochs", "2")
    for words in (
        f"Model {told['model']} fits best.",
        f"{told['validation_samples']} samples held out",
        f"{told['before']['loss']:.4f}",
        f"{told['after']['loss']:.4f}",
        "epoch 2/2",
        "Adapting lowered the loss",
        "The model: m.safetensors",
    ):
        assert words in out


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from fedfew.cli.select import _progress

    with _progress(Console(force_terminal=True, width=100), 2) as on_epoch:
        on_epoch(1, Fit(0.5, 1.0))
        on_epoch(2, Fit(0.25, 1.0))
    assert "adapting, loss 0.2500" in capsys.readouterr().out


def test_adapting_that_makes_it_worse_is_said_plainly(exported: str) -> None:
    words = ["select", exported, "--data", "mine.npz", "--adapt-epochs", "2", "--lr", "50"]
    out = " ".join(call(*words).stdout.split())
    assert "Adapting made it worse: the loss on the samples held out did not fall. The model is used as received." in out
    assert "It is used nevertheless" in call(*words, "--keep-adapted").stdout
    told = document(exported, "--adapt-epochs", "2", "--lr", "50", "-o", "m.safetensors")
    assert told["adapted"] is False
    as_it_came = export.read(exported).models[told["model"]].state_dict()
    for name, value in fedfew.load_model("m.safetensors").state_dict().items():
        assert torch.equal(value, as_it_came[name])


def test_groups_in_the_file_are_kept_together(exported: str) -> None:
    arrays = dict(np.load("mine.npz"))
    n = len(arrays["y"])
    np.savez("mine.npz", **arrays, groups=np.arange(n) // (n // 2 + 1))  # two groups, of about half each
    assert document(exported)["validation_samples"] in (n // 2, n // 2 + 1)


def test_an_altered_export_is_refused(exported: str) -> None:
    (Path(exported) / "models/model-1.safetensors").write_bytes(b"")
    assert "models/model-1.safetensors is not as it was written" in refused("select", exported, "--data", "mine.npz")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--adapt-epochs", "1", "--lr", "0"], "lr must be a finite number > 0, not 0.0"),
        (["--adapt-epochs", "1", "--batch-size", "0"], "batch_size must be a whole number ≥ 1, not 0"),
        (["--adapt-epochs", "1", "--validation", "0"], "validation is 0"),
        (["--validation", "1.5"], "validation must be a share in [0, 1), not 1.5"),
        (["-o", "model.pt"], "--output must end in .safetensors, not 'model.pt'"),
    ],
)
def test_mistakes(exported: str, words: list[str], answer: str) -> None:
    assert answer in refused("select", exported, "--data", "mine.npz", *words)


@pytest.mark.parametrize(
    ("x", "answer"),
    [
        (np.zeros((4, 1, 8, 8), np.uint8), "x must be floating-point numbers, as in the training, not bytes (uint8"),
        (np.full((4, 1, 8, 8), np.nan, np.float32), "x contains NaN or infinite values"),
    ],
)
def test_samples_of_another_kind_are_refused(exported: str, x: np.ndarray, answer: str) -> None:
    np.savez("other.npz", x=x, y=np.zeros(len(x), int))
    assert answer in refused("select", exported, "--data", "other.npz")


def test_select_takes_the_model_with_the_least_loss(finished: Path) -> None:
    x, y = fedfew.data.digits(4).train.of(1)
    np.savez("mine.npz", x=x.numpy(), y=y.numpy())
    document = json.loads(call("select", str(finished), "--data", "mine.npz", "--validation", "0", "--json").stdout)
    assert document["model"] == fedfew.select(fedfew.load(finished).models, x, y)
    losses = [model["loss"] for model in document["models"]]
    assert losses.index(min(losses)) == document["model"]
    assert f"Model {document['model']} fits best." in call("select", str(finished), "--data", "mine.npz").stdout


def test_select_adds_the_prior_with_the_strength_of_the_training() -> None:
    settings = {"label_prior": "client", "prior_strength": 0.25, "rounds": 1, "batch_size": 10, "lr": 0.1, "engine": "sequential"}
    run = fedfew.train(fedfew.data.digits(4, "dirichlet"), "mlp", fedfew.FedFew(models=2), folder="run", **settings)
    x, y = fedfew.data.digits(4, "dirichlet").train.of(1)
    np.savez("mine.npz", x=x.numpy(), y=y.numpy())
    document = json.loads(call("select", "run", "--data", "mine.npz", "--validation", "0", "--json").stdout)
    expected = []
    for module in run.models:
        log_prior = 0.25 * ((torch.bincount(y, minlength=10) + 1) / (len(y) + 10)).log()
        expected.append(float(torch.nn.functional.cross_entropy(module(x).detach() + log_prior, y)))
    assert [model["loss"] for model in document["models"]] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("arrays", "answer"),
    [
        ({"x": np.zeros((2, 1, 8, 8))}, "an array y is needed. Without labels use 'fedfew predict … --new-client'"),
        ({"x": np.zeros((2, 9)), "y": np.zeros(2, int)}, "samples of shape [1, 8, 8]"),
        ({"x": np.zeros((0, 1, 8, 8)), "y": np.zeros(0, int)}, "bad.npz has no rows"),
        ({"x": np.zeros((2, 1, 8, 8)), "y": np.array([0, 10])}, "whole numbers from 0 to 9"),
        ({"x": np.zeros((2, 1, 8, 8)), "y": np.array([0.5, 1])}, "labels must be whole numbers or words, not float64"),
    ],
)
def test_select_refuses_data_that_do_not_fit(finished: Path, arrays: dict[str, np.ndarray], answer: str) -> None:
    np.savez("bad.npz", **arrays)
    assert answer in refused("select", str(finished), "--data", "bad.npz")


def test_select_needs_a_file_and_models(finished: Path) -> None:
    assert "there is no file or folder nowhere.npz" in refused("select", str(finished), "--data", "nowhere.npz")
    Path("text.npz").write_text("not an archive")
    assert "text.npz cannot be read as .npz of plain arrays" in refused("select", str(finished), "--data", "text.npz")
    call("run", *SMALL, "--method", "local", "--folder", "r")
    np.savez("mine.npz", x=np.zeros((1, 1, 8, 8)), y=np.zeros(1, int))
    assert "local keeps no whole models on the server" in refused("select", "r", "--data", "mine.npz")


def test_labels_in_words_are_looked_up_in_the_class_names_of_the_export() -> None:
    rows = [f"{i % 7}.5,{i % 5 - 2}.25,{('Basel', 'Bern')[i % 2]},{('ill', 'well')[i % 3 == 0]}" for i in range(60)]
    Path("patients.csv").write_text("marker,dose,hospital,label\n" + "\n".join(rows) + "\n")
    call("run", "--dataset", "patients.csv", "--partition", "by:hospital", "--folder", "r", *TINY)
    record = json.loads(Path("r/federation.json").read_text())
    assert record["client_names"] == ["Basel", "Bern"]
    assert record["class_names"] == ["ill", "well"]
    assert record["columns"]["used"] == ["marker", "dose"]
    table = fedfew.data.load("patients.csv", partition="by:hospital")
    assert fedfew.load("r").data.preprocessing == table.preprocessing
    call("export", "r", "-o", "models")
    x, y = table.test.of(0)
    np.savez("numbers.npz", x=x, y=y)
    np.savez("words.npz", x=x, y=np.array(["ill", "well"])[y.numpy()])
    chosen = [json.loads(call("select", "models", "--data", f"{name}.npz", "--json").stdout) for name in ("numbers", "words")]
    assert chosen[0] == chosen[1]
