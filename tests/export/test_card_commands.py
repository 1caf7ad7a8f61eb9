"""Every command and every line of Python that a model card shows works as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedfew
from fedfew import export
from fedfew.adapters import LoRA
from tests import hospitals, texts
from tests.helpers import call

SHORT: dict[str, Any] = {"rounds": 1, "engine": "sequential", "device": "cpu"}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).abs().pow(1.5).mean(1)


def arrays(task: str) -> fedfew.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 20, 3)).astype("f4")
    y = {"classification": x[..., 0] > x[..., 1], "regression": x[..., :2], "multi-label": (x[..., :2] > 0).astype("f4")}[task]
    np.savez("new.npz", x=x[0])
    np.savez("mine.npz", x=x[0], y=y[0])
    samples = [(x[i], y[i].astype("i8") if task == "classification" else y[i]) for i in range(3)]
    return fedfew.Federation.from_arrays(samples, samples, task=task)


def patients() -> fedfew.Federation:
    hospitals.write(Path("new.csv"), rows=12, with_label=False)
    return fedfew.data.load(hospitals.write(Path("mine.csv")), label="diagnosis", client="hospital")


def stories() -> fedfew.Federation:
    tokenizer = texts.tokenizer_folder(Path("tokenizer"))
    path = texts.write_rows(Path("mine.csv"), texts.unlabelled(texts.rows()))
    return fedfew.data.load(path, client="writer", tokenizer=tokenizer, max_length=8, task="language-modelling")


STRONG = {"label_prior": "client", "serve": "mixture"}
CASES: dict[str, tuple[Any, ...]] = {  # data, model, method, settings, how it is written
    "table, mixture and prior": (patients, "linear", "fedfew", STRONG, export.write),
    "table, anonymous": (patients, "linear", "fedfew", STRONG, lambda run, to: export.write(run, to, anonymous=True)),
    "one model": (patients, "linear", "fedavg", {}, export.write),
    "one model, anonymous": (patients, "linear", "fedavg", {}, lambda run, to: export.write(run, to, anonymous=True)),
    "models of their own": (patients, "linear", "ditto", {}, export.write),
    "models of their own, written": (patients, "linear", "ditto", {"label_prior": "client"}, export.write_personal),
    "clusters": (lambda: arrays("classification"), "mlp", "fesem", {}, export.write),
    "regression": (lambda: arrays("regression"), "mlp", "fedem", {}, export.write),
    "several labels": (lambda: arrays("multi-label"), "mlp", "fedfew", {}, export.write),
    "ones own": (lambda: arrays("regression"), net, "fedfew", {"loss": loss, "batch_norm": "batch"}, export.write),
    "LoRA": (lambda: arrays("classification"), net, "fedfew", {"adapters": LoRA(rank=1)}, export.write),
    "LoRA alone": (lambda: arrays("classification"), "mlp", "fedfew", {"adapters": LoRA(rank=1)}, export.write_adapters),
    "language": (stories, texts.bigram, "fedfew", {}, export.write),
}  # fmt: skip


def arguments(command: str, run: fedfew.Run) -> list[str]:
    """Of a command, with the names of what is here in place of those on the card."""
    own = {"module:factory": run.settings["model"], "module:function": f"{__name__}:loss", "NAME": run.client_names[0]}
    own |= {} if Path("mine.csv").exists() else {"mine.csv": "mine.npz", "new.csv": "new.npz"}
    return [own.get(word, word) for word in shlex.split(command.replace("THIS_FOLDER", "e"), comments=True)[1:]]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("case", CASES)
def test_what_the_card_shows_works(case: str) -> None:
    make, model, method, settings, write = CASES[case]
    data = make()
    run = fedfew.train(data, model, method, **SHORT, **settings)
    page = (write(run, "e") / "README.md").read_text(encoding="utf-8").partition("## Use")[2]
    commands, python, *plain = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)
    for command in commands.splitlines():
        call(*arguments(command, run), "--force")
    x, y = data.test.of(0)
    new = {"new": x.numpy(), "mine": x.numpy(), "labels": y.numpy(), "frequencies": [0.3, 0.7]}
    if case == "language":
        new["mine"] = [row["text"] for row in texts.rows()]
    known = new | {"your_factory": model, "your_loss": loss, "your_module": net() if case == "LoRA" else run.new_module()}
    for block in (python, *plain):
        if "peft" not in block and "vllm" not in block:
            exec(block.replace("THIS_FOLDER", "e").replace('"NAME"', repr(run.client_names[0])), known)
    found = known["export"]
    assert ("model_of" in python) == ("clients.safetensors" in found.card["files"])
    if "model_of" in python:
        inputs = data.test.inputs(data.test.rows(0))
        torch.testing.assert_close(found.model_of(0)(inputs), run.model_of(0)(inputs), rtol=0, atol=0)
    if any("nn.Sequential" in block for block in plain):  # built and loaded with torch alone
        inputs = data.test.inputs(data.test.rows(0))
        torch.testing.assert_close(known["module"].eval()(inputs), found.models[0](inputs), rtol=0, atol=0)
    assert ("nn.Sequential" in "".join(plain)) == ("LoRA" not in case and case != "language")


@pytest.mark.usefixtures("here")
def test_an_inverse_perplexity_has_digits_on_the_card() -> None:
    """It is next to 0 with a real vocabulary: to three decimals scores were 0.006 ± 0.000."""
    run = fedfew.train(stories(), texts.bigram, "fedfew", **SHORT)
    page, scores = (export.write(run, "e") / "README.md").read_text(encoding="utf-8"), run.scores("served")
    assert f"| served | {scores.mean():.5f} ± {scores.std():.5f} | {scores.min():.5f} | {scores.max():.5f} |" in page
