"""The data sets that lie beside the project, a sample of each, trained for two rounds from the command line."""

import json

import pytest
from typer.testing import CliRunner

from fedfew.cli import app

# data set → flags, its model in the paper's settings, shape of a sample, classes
SETS = {
    "cifar10": (["--partition", "dirichlet:0.5", "--sample", "300"], "cnn", [3, 32, 32], 10),
    "ag-news": (["--partition", "dirichlet:1", "--sample", "80", "--batch-size", "8"], "textcnn", [200], 4),
    "mnist-writers": (["--sample", "300"], "cnn", [1, 28, 28], 10),
    "ham10000": (["--sample", "60", "--batch-size", "10"], "resnet18", [3, 28, 28], 7),
    "tiny-imagenet": (["--partition", "dirichlet:1", "--sample", "80"], "cnn", [3, 64, 64], 20),
}


@pytest.mark.parametrize("name", ["cifar10", *(pytest.param(name, marks=pytest.mark.slow) for name in SETS if name != "cifar10")])
def test_two_rounds(name, shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDFEW_CACHE", str(tmp_path / "cache"))
    flags, model, shape, classes = SETS[name]
    common = ["run", "--dataset", name, "--data-dir", str(shared), "--clients", "3", "--rounds", "2", "--models", "2", "--json"]
    result = CliRunner().invoke(app, [*common, *flags])
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    data, settings = document["settings"]["federation"], document["settings"]
    assert (settings["model"], data["shape"], data["classes"], data["clients"]) == (model, shape, classes, 3)
    assert document["round"] == 2
    assert all(0 <= client["served"] <= 1 for client in document["clients"])
    assert document["scores"]["served"]["weighted_mean"] is not None
