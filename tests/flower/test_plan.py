"""A run's configuration, the app that is written to begin with, and the command group."""

import builtins
import json
import os
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedfew.flower
from fedfew.cli import app
from fedfew.flower import template
from fedfew.flower.plan import SIMULATED, Plan
from fedfew.util.files import folder_locked

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


def test_a_plan_from_a_configuration():
    plan = Plan.read({"method": "fedfew:models=4, mu=0.003, published", "lr": 1, "score-every": 5, "mine.key": "kept"})
    assert (plan.lr, plan.score_every) == (1.0, 5)
    settings = plan.make_method().settings()
    assert (settings["models"], settings["mu"], settings["init_models"]) == (4, 0.003, "copies")
    assert plan.for_sites()["method"] == settings


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quorom": 1}, "there is no setting of a run called 'quorom'; did you mean 'quorum'"),
        ({"rounds": 0}, "rounds must be ≥ 1, not 0"),
        ({"rounds": "many"}, "rounds must be a whole number, not 'many'"),
        ({"quorum": 1.5}, r"quorum must be in \(0, 1\], not 1.5"),
        ({"deadline": 0}, "deadline must be a finite number > 0"),
        ({"clip-norm": -1}, "clip-norm must be a finite number ≥ 0"),
        ({"refuse-ratio": 0.5}, "refuse-ratio must be 0 or a finite number > 1"),
        ({"lr": float("inf")}, "lr must be a finite number > 0"),
        ({"participation": 0}, "participation must be in"),
        ({"method": "fedfoo"}, "there is no method 'fedfoo'"),
        ({"method": "fedavg:mu=1"}, "there is no setting 'mu'"),
        ({"method": "fedfew:models=9"}, r"models must be at most the number of clients \(4\)"),
    ],
)
def test_a_wrong_configuration_is_said_in_words(config, message):
    with pytest.raises(ValueError, match=message):
        Plan.read(config)


def test_the_example_is_what_init_writes(tmp_path):
    files = {path: path.read_text() for path in template.write(tmp_path / "flower")}
    written = {str(path.relative_to(tmp_path / "flower")): text for path, text in files.items()}
    there = {name: (EXAMPLE / name).read_text() for name in written}
    assert there == written
    config = tomllib.loads(written["pyproject.toml"])["tool"]["flwr"]["app"]["config"]
    assert config.keys() == {f.name.replace("_", "-") for f in fields(Plan)} | set(SIMULATED)
    assert Plan.read(config).make_method().name == "fedfew"


def test_init_and_check_on_the_command_line(tmp_path):
    runner = CliRunner()
    made = runner.invoke(app, ["flower", "init", str(tmp_path / "3 Sites"), "--json"])
    assert made.exit_code == 0, made.output
    assert str(tmp_path / "3 Sites" / "app_3_sites_app" / "client.py") in json.loads(made.stdout)["files"]
    again = runner.invoke(app, ["flower", "init", str(tmp_path / "3 Sites")])
    assert again.exit_code == 2
    assert "not empty" in again.output
    shown = runner.invoke(app, ["flower", "init", str(tmp_path / "other")])
    assert "flwr run" in shown.output
    good = runner.invoke(app, ["flower", "check", 'client=1 data="digits" clients=4', "--json"])
    assert json.loads(good.stdout)["told"]["samples"] == 337
    assert "the server learns" in runner.invoke(app, ["flower", "check", 'client=1 data="digits" clients=4']).output
    for wrong, words in {
        "client=1 data=digits": "double quotes",
        "client": "key=value pairs",
        'client=9 data="digits" clients=4': "has 4 clients",
    }.items():
        bad = runner.invoke(app, ["flower", "check", wrong])
        assert bad.exit_code == 2
        assert words in " ".join(bad.output.split())


def test_without_flower_the_way_to_get_it_is_said(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest, **named):
        if name.split(".")[0] == "flwr":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **named)

    for module in ("client", "server", "strategy", "network", "records"):
        monkeypatch.delitem(__import__("sys").modules, f"fedfew.flower.{module}", raising=False)
        monkeypatch.delattr(fedfew.flower, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedfew\[flower\]'"):
        fedfew.flower.client_app  # noqa: B018  # the access is the test
    with pytest.raises(AttributeError, match="has no attribute 'clientapp'"):
        fedfew.flower.clientapp  # noqa: B018


def test_one_server_at_a_time_in_a_folder(tmp_path):
    with (
        folder_locked(tmp_path / "run"),
        pytest.raises(ValueError, match=rf"process {os.getpid()} on .* is using"),
        folder_locked(tmp_path / "run", wait=0),
    ):
        pass
    with folder_locked(tmp_path / "run", wait=0):
        pass
