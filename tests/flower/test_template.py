"""The app that is written to start from."""

import builtins
import tomllib
from pathlib import Path

import pytest

import fedfew.flower
from fedfew.flower import template
from fedfew.flower.deployment_config import SIMULATED, DeploymentConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


def test_the_example_is_what_init_writes(tmp_path):
    files = {path: path.read_text() for path in template.write(tmp_path / "flower")}
    written = {str(path.relative_to(tmp_path / "flower")): text for path, text in files.items()}
    there = {name: (EXAMPLE / name).read_text() for name in written}
    assert there == written
    config = tomllib.loads(written["pyproject.toml"])["tool"]["flwr"]["app"]["config"]
    assert config.keys() == {name.replace("_", "-") for name in DeploymentConfig.names()} | set(SIMULATED)
    assert DeploymentConfig.read(config).make_method().name == "fedfew"


def test_without_flower_the_error_names_what_to_install(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest, **named):
        if name.split(".")[0] == "flwr":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **named)

    for module in ("client", "server", "strategy", "network", "records"):
        monkeypatch.delitem(__import__("sys").modules, f"fedfew.flower.{module}", raising=False)
        monkeypatch.delattr(fedfew.flower, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[flower\]'"):
        fedfew.flower.client_app  # noqa: B018  # the access is the test
    with pytest.raises(AttributeError, match="has no attribute 'clientapp'"):
        fedfew.flower.clientapp  # noqa: B018
