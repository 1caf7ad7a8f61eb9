"""The quick start, followed from top to bottom in an empty folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

import fedfew
from tests.cli.test_docs import blocks
from tests.helpers import call

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
SHORTER = ["--rounds", "2", "--engine", "stacked"]  # as written they take minutes


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_every_command_works_as_the_page_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    Path("my.yaml").write_text(blocks(PAGE, "yaml")[0])
    made, own_model = blocks(PAGE, "python")
    assert own_model.startswith("# mine.py")
    Path("mine.py").write_text(own_model)
    exec(compile(made, str(PAGE), "exec"), {})
    lines = [line for block in blocks(PAGE, "") for line in block.splitlines()]
    assert len(lines) >= 10
    for line in lines:
        program, command, *words = shlex.split(line)
        assert program == "fedfew"
        if command != "demo":  # has tests of its own
            call(command, *words, *(SHORTER if command in ("run", "compare") and "--resume" not in words else []))
    predictions = Path("predictions.csv").read_text().splitlines()
    assert predictions[0] == "row,prediction"
    assert len(predictions) == 1 + len(np.load("mine.npz")["x"])
    assert fedfew.load_model("model.safetensors") is not None
    assert {path.name for path in Path("runs").iterdir()} >= {
        "digits-fedfew-0",
        "digits-fedfew-0-2",
        "digits-fedfew-0-3",
        "compare-digits",
    }
    assert {"curves.png", "comparison.png", "digits-models"} <= {path.name for path in Path().iterdir()}
