"""The demonstration of a deployment: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedfew

pytest.importorskip("flwr")
from examples.localhost import processes_of

from fedfew.flower.deployment_config import DeploymentConfig

DEMO = Path(__file__).parents[2] / "examples" / "deploy_demo.py"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(DEMO), *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_its_settings_give_each_group_a_model_which_a_fifth_site_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the simulator: with another μ the models hardly differ, and the fifth site may be told that the other group's fits."""
    monkeypatch.syspath_prepend(str(DEMO.parent))
    demo = importlib.import_module("deploy_demo")
    demo.write_data(tmp_path)
    sites = [np.load(tmp_path / f"{name}.npz") for name in demo.SITES]
    train, test = ([(site[f"x_{part}"], site[f"y_{part}"]) for site in sites] for part in ("train", "test"))
    method = DeploymentConfig(method=demo.METHOD).make_method()
    settings = {"rounds": demo.ROUNDS, "local_epochs": demo.EPOCHS, "lr": demo.LR, "score_every": demo.ROUNDS, "device": "cpu"}
    run = fedfew.train(fedfew.Federation.from_arrays(train, test, classes=10), "mlp", method, **settings)
    upright, rotated = run.choice[0], run.choice[1]
    assert run.choice.tolist() == [upright, rotated, upright, rotated]
    assert upright != rotated
    new = np.load(tmp_path / f"{demo.NEW_SITE}.npz")
    right = [float((run.predict(new["x"], client=i) == new["y"]).mean()) for i in range(2)]
    assert right[0] > 0.8 > 0.3 > right[1]


@pytest.mark.deploy
def test_the_demonstration_in_short(tmp_path: Path) -> None:
    """Three rounds. The killed site misses one of the last two; that it comes back is left to the whole demonstration."""
    demo = start(tmp_path, "--rounds", "3", "--kill-after", "1", "--deadline", "75")
    out, _ = demo.communicate(timeout=1200)
    assert demo.returncode == 0, out
    assert "site west killed" in out
    assert re.search(r"round [23]: client 3 is left out", out), out
    rows = {name: cells.split() for name, cells in re.findall(r"^ (north|east|south|west) +(.*)$", out, re.M)}
    assert {name: row[0] for name, row in rows.items()} == {"north": "0°", "east": "90°", "south": "0°", "west": "90°"}
    for name in ("north", "east", "south"):
        assert rows[name][1] in ("0", "1"), out
        assert float(rows[name][2]) > 10, out  # served, better than chance
        assert rows[name][4] == "3"
    assert rows["west"][4] in ("1", "2")
    assert rows["north"][1] == rows["south"][1] != rows["east"][1], out
    assert re.search(rf"never took part: model {rows['north'][1]} fits it best, which north and south chose, too", out), out
    assert "processes left: 0" in out
    assert not list(tmp_path.glob("fedfew-demo-*"))


@pytest.mark.deploy
def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    demo = start(tmp_path)
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if "SuperLink ready" in line:
            (folder,) = tmp_path.glob("fedfew-demo-*")
            assert processes_of(folder)
            demo.send_signal(signal.SIGINT)
    demo.wait(600)
    assert demo.returncode == 1, lines
    assert "stopped" in lines[-3]
    assert "processes left: 0" in lines[-2]
    assert processes_of(folder) == []
