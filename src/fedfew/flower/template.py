"""The app that ``fedfew flower init`` writes, which is also in ``examples/flower``."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from fedfew.flower.deployment_config import DeploymentConfig

DEFAULTS = {"method": "fedfew:models=3", "batch_size": 10, "lr": 0.1}  # settings that suit the digits, the app's first data
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "Few models for many clients, trained at sites that keep their data"
license = "Apache-2.0"
dependencies = []  # torch, flwr and fedfew come with the environments of the server and of every site

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedfew"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
{settings}
# Read by the nodes of a simulation only, which have no configuration of their own:
data = "digits"
partition = "rotation"
data-seed = 0
task = ""  # what the labels are, where they do not show it; of texts with a tokenizer also language-modelling
"""
CLIENT = '''\
"""What every site runs. Its client number and data are set by ``flower-supernode --node-config``."""

from fedfew.flower import client_app

app = client_app()  # client_app(make) for a model of your own; make() returns an nn.Module that gives logits
'''
SERVER = '''\
"""What the server runs, configured in pyproject.toml."""

from fedfew.flower import server_app

app = server_app()  # server_app(make) for a model of your own, the same as the sites'
'''
README = """\
# {name}

Federated training with fedfew on Flower, at sites that keep their data. Settings are in `pyproject.toml`; `flwr run` changes them
with `--run-config`.

## On one machine, simulated
```
pip install -e 'FEDFEW[simulation]'  # FEDFEW: the folder of fedfew's clone
flwr run . local --stream --federation-config "num-supernodes=4"
```

## Between real sites
```
pip install -e 'FEDFEW[flower]'                                                          # everywhere
flower-superlink --insecure                                                              # the server
flower-supernode --insecure --superlink SERVER:8000 --node-config 'client=0 data="mine.npz" classes=10'   # site 0, and so on
flwr run . SUPERLINK --stream                                                            # a connection of `flwr config list`
```
`--insecure` is for a first try on one machine: `fedfew flower certs` writes keys and certificates, and prints how to use them.

A site's data is a file (`.npz` with x and y, or x_train, y_train, x_test and y_test; a prepared `.fed`; with a tokenizer a table
of texts, `.csv`, `.parquet` or `.jsonl`), a data set's name, or `module:function` of your own, which receives the node's
configuration as a dict and returns a `fedfew.Federation` of one client.
`fedfew flower check 'client=0 data="mine.npz"'` tries it. `~/.fedfew/sites` (or `state=` in the configuration)
holds a site's private state: its own models, the audit log of what was sent, and the model it chose after training.

The server writes the run to `folder`; if it is stopped, run the app again and it continues. `fedfew show runs/flower` shows it.
"""


def write(folder: Path) -> list[Path]:
    """Write an app into a folder that does not exist yet or is empty; returns its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not empty: choose another folder")
    paths = []
    for name, text in files(folder.resolve().name).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def files(name: str) -> dict[str, str]:
    """The files of an app of this name, by path."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "app"
    plain = plain if plain[0].isalpha() else f"app-{plain}"
    package = f"{plain.replace('-', '_')}_app"
    return {
        "pyproject.toml": PYPROJECT.format(name=plain, package=package, settings=settings()),
        f"{package}/__init__.py": '"""A federation of sites on Flower, trained by fedfew."""\n',
        f"{package}/client.py": CLIENT,
        f"{package}/server.py": SERVER,
        "README.md": README.format(name=plain),
    }


def settings() -> str:
    """Every setting of a deployment with its value and meaning, in TOML."""
    lines = []
    for setting in (f for f in fields(DeploymentConfig) if f.name in DeploymentConfig.names()):
        value = DEFAULTS.get(setting.name, setting.default)
        lines.append((f"{setting.name.replace('_', '-')} = {_toml(value)}", setting.metadata["about"]))
    width = max(len(line) for line, _ in lines)
    return "\n".join(f"{line:<{width}}  # {about}" for line, about in lines)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
