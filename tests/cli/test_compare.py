"""``fedfew compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfew
from fedfew.cli import compare
from fedfew.evaluation import costs
from fedfew.methods import METHODS, Method
from tests.cli.small import PNG, SMALL, TINY
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")


def test_compare_methods_and_seeds_in_one_table_and_one_plot() -> None:
    out = call("compare", *SMALL, "--methods", "fedavg,fedfew:models=2,mu=0.003", "--seeds", "2", "-o", "c.png").stdout
    assert "± seeds" in out
    assert "fedfew:models=2,mu=0.003" in out
    assert "MB up" in out
    assert Path("c.png").read_bytes()[:4] == PNG
    assert len(list(Path("runs/compare-digits").glob("*/round-000002"))) == 4


def test_compare_json() -> None:
    result = call("compare", *SMALL, "--methods", "local,fedavg", "--seeds", "2", "--seed", "5", "--json")
    document = json.loads(result.stdout)
    assert list(document["methods"]) == ["local", "fedavg"]
    fedavg = document["methods"]["fedavg"]
    assert list(fedavg["seeds"]) == ["5", "6"]
    means = [fedavg["seeds"][seed]["served"]["mean"] for seed in ("5", "6")]
    assert fedavg["across_seeds"]["served"]["mean"] == pytest.approx(np.mean(means))
    assert fedavg["across_seeds"]["served"]["std_over_seeds"] == pytest.approx(np.std(means, ddof=1))
    assert fedavg["costs"]["bytes_up"] > document["methods"]["local"]["costs"]["bytes_up"] == 0
    assert Path(document["plot"]).read_bytes()[:4] == PNG


def test_compare_resumes_with_what_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    train, calls = fedfew.train, []

    def stops_in_the_second(*args: object, **kwargs: object) -> object:
        calls.append(kwargs["folder"])
        if len(calls) == 2:
            raise fedfew.Interrupted(fedfew.load(calls[0]))
        return train(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(fedfew, "train", stops_in_the_second)
    words = ["compare", *SMALL, "--methods", "local,fedavg", "--folder", "r"]
    assert "fedfew compare --resume --folder r" in call(*words, code=130).stderr
    assert "is not empty" in refused(*words)
    result = call("compare", "--resume", "--folder", "r", "--json")
    assert list(json.loads(result.stdout)["methods"]) == ["local", "fedavg"]


def test_a_comparison_may_be_written_down() -> None:
    Path("c.yaml").write_text("methods: local,fedavg\nseeds: 1\nrounds: 1\nclients: 4\n")
    assert list(json.loads(call("compare", "--config", "c.yaml", "--json").stdout)["methods"]) == ["local", "fedavg"]


def test_a_comparison_that_cannot_begin_leaves_nothing_behind() -> None:
    assert "lr must be" in call("compare", "--lr", "-1", code=2).stderr
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_specs_of_methods() -> None:
    assert compare.parse("local, fedfew:models=4,mu=0.1,fedfew:published") == {
        "local": {"name": "local"},
        "fedfew:models=4,mu=0.1": {"name": "fedfew", "models": "4", "mu": "0.1"},
        "fedfew:published": {"name": "fedfew", "published": "true"},
    }
    assert compare.parse("fedfew,mu=0.1") == {"fedfew:mu=0.1": {"name": "fedfew", "mu": "0.1"}}
    assert list(compare.parse("all")) == list(METHODS)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--methods", "mu=3"], "a method's name comes first"),
        (["--methods", ","], "names no method"),
        (["--methods", ""], "names no method"),
        (["--methods", "local,local"], "twice"),
        (["--methods", "locl"], "did you mean 'local'?"),
        (["--methods", "fedfew:modles=3"], "did you mean 'models'?"),
        (["--methods", "fedfew:models=x"], "models of fedfew must be a whole number"),
        (
            ["--methods", "fedfew:model=3"],
            "model is a setting of the whole run, not of fedfew: --model, or outside of method in a file. Or did",
        ),
        (["--methods", "fedfew:lr=0.1"], "lr is a setting of the whole run, not of fedfew: --lr"),
        (
            ["--methods", "fedfew", "--mu", "0.1"],
            "there is no flag --mu; a hyperparameter follows its method: --methods fedfew:mu=…",
        ),
        (["--methods", "local,", "fedavg"], "'fedavg' is not expected here: methods are one list without spaces"),
        (["--wholly-different"], "'fedfew compare --help' lists them"),
        (["--seeds", "0"], "--seeds"),
        (["--methds", "local"], "--methods"),
        (["-o", "plot.doc"], "must end in .png"),
        (["--clients", "2", "--methods", "fedfew:models=3"], "models must be at most the number of clients (2)"),
        (["--method", "local"], "--methods"),
    ],
)
def test_mistakes_in_a_comparison(words: list[str], answer: str) -> None:
    assert answer in refused("compare", *words)


def test_a_method_whose_costs_cannot_be_counted_is_trained_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = costs.cost

    def fails(method: Method, *others: Any) -> costs.Cost:
        if method.name == "local":
            raise ZeroDivisionError("no such cost")
        return counted(method, *others)

    monkeypatch.setattr(costs, "cost", fails)
    with pytest.warns(UserWarning, match="the costs of a round could not be counted: ZeroDivisionError: no such cost"):
        result = call("compare", *TINY, "--methods", "local,fedavg", "--folder", "c", "--json")
    assert "note: the costs of local could not be counted: ZeroDivisionError: no such cost" in result.stderr
    found = json.loads(result.stdout)["methods"]
    assert found["local"]["costs"] is None
    assert found["fedavg"]["costs"]["gradient_passes"] == 1
    assert not list(Path("c").glob("local-*/costs.json"))
    assert len(list(Path("c").glob("fedavg-*/costs.json"))) == 1


@pytest.mark.slow
def test_methods_for_classes_are_left_out_of_all_and_refused_before_anything_is_trained_for_numbers() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 2)).astype(np.float32)
    np.savez("numbers.npz", x=x, y=x.sum(1), site=np.arange(24) % 3)
    words = ("compare", "--dataset", "numbers.npz", "--partition", "by:site", "--rounds", "1", "--model", "mlp")
    answer = call(*words, "--methods", "fedavg,fedrod", "--folder", "c", code=2)
    assert "fedrod works with classes alone, but the task is regression" in answer.stderr
    assert not Path("c").exists()
    for_classes = [name for name, method in METHODS.items() if method.needs_classes]
    found = call(*words, "--methods", "all", "--engine", "sequential", "--json")
    assert f"work with classes alone and the task is regression: {', '.join(for_classes)}\n" in found.stderr
    assert json.loads(found.stdout)["methods"].keys() == METHODS.keys() - set(for_classes)
