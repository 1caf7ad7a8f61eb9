"""The demonstration of a deployment: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from examples.localhost import processes_of

pytestmark = pytest.mark.deploy
DEMO = Path(__file__).parents[2] / "examples" / "deploy_demo.py"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(DEMO), *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


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
    assert re.search(r"never took part: model [01] fits it best", out), out
    assert "processes left: 0" in out
    assert not list(tmp_path.glob("fedfew-demo-*"))


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
