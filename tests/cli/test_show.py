"""``fedfew show``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedfew
from fedfew.evaluation.metrics import evaluate
from tests.cli.small import PNG
from tests.helpers import call, refused

pytestmark = pytest.mark.usefixtures("here")


def test_show(finished: Path) -> None:
    out = call("show", str(finished), "--png", "curves.png").stdout
    assert Path("curves.png").read_bytes()[:4] == PNG
    for word in ("digits-rotation", "mu 0.003", "worst client", "samples", "group"):
        assert word in out
    document = json.loads(call("show", str(finished), "--json").stdout)
    assert len(document["clients"]) == len(document["data"]["train"]) == 4
    assert document["settings"]["method"]["models"] == 2


def test_settings_that_are_as_by_default_are_not_listed() -> None:
    data = fedfew.data.digits(clients=4)
    fedfew.train(data, rounds=1, folder="run", temperature=0.25)
    out = call("show", "run").stdout
    assert "temperature 0.25" in out
    assert "optimizer sgd" in out  # as by default, but listed in any case
    assert "label_smoothing" not in out
    assert json.loads(call("show", "run", "--json").stdout)["settings"]["label_smoothing"] == 0


def test_final_scores_are_kept_with_their_round(finished: Path) -> None:
    expected = evaluate(fedfew.load(finished), fedfew.data.digits(4))
    document = json.loads(call("show", str(finished), "--json").stdout)
    assert document["final"]["macro_f1"] == pytest.approx(expected.macro_f1.tolist())
    assert document["final"]["auc"] == pytest.approx(expected.auc.tolist())
    assert document["weights"]["models_in_use"] == len(set(fedfew.load(finished).choice.tolist()))
    out = call("show", str(finished)).stdout
    assert "served macro-F1" in out
    assert "entropy of w" in out
    call("run", "--resume", "--folder", str(finished), "--rounds", "3")
    (finished / "scores.json").write_text('{"round": 2, "macro_f1": [0, 0, 0, 0]}')  # of a round that is no longer the last
    assert "macro-F1" not in call("show", str(finished)).stdout


def test_show_a_run_saved_from_python() -> None:
    fedfew.train(fedfew.data.digits(4, "iid"), rounds=1, method="fedavg").save("r")
    out = call("show", "r", "--png", "c.png").stdout
    assert "samples" not in out
    assert Path("c.png").exists()


def test_show_tells_what_happened() -> None:
    run = fedfew.train(fedfew.data.digits(4, "iid"), rounds=1, method="fedavg")
    run.state.events.append("round 1: left out client 3")
    run.save("r")
    assert "left out client 3" in call("show", "r").stdout


def test_show_nothing() -> None:
    assert "there is no folder nowhere" in refused("show", "nowhere")
    assert "did you mean" in refused("shwo", "nowhere").lower()


@pytest.mark.parametrize("words", ["show {}", "export {} -o e", "predict {} --data a.csv", "select {} --data a.csv"])
def test_what_is_not_the_folder_of_a_run_is_answered_with_what_to_give(words: str, here: Path) -> None:
    fedfew.train(fedfew.data.digits(4, "iid"), rounds=1, method="fedavg").save("runs/mine")
    assert "runs is not the folder of a run, but holds 1 of them; give one: runs/mine" in refused(*words.format("runs").split())
    (here / "a.csv").write_text("x,y\n")
    answer = refused(*words.format("a.csv").split())
    assert "a.csv is a file, but the folder of a run is needed" in answer or "a.csv is no file of a model" in answer
    assert "Error: TypeError" not in answer


def test_a_run_stopped_in_its_first_round_has_nothing_to_show_yet() -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    federation = fedfew.data.digits(4)
    with pytest.raises(fedfew.Interrupted) as stopped:
        fedfew.train(federation, rounds=5, score_every=5, folder="r", method="fedavg", on_round=interrupt)
    assert len(stopped.value.run.history) == 0
    result = call("show", "r", code=2)
    assert "nothing to show yet" in result.stderr
    assert json.loads(call("show", "r", "--json").stdout)["round"] == 1


@pytest.mark.parametrize("command", ["show", "select", "export", "report"])
def test_nothing_that_a_folder_names_is_imported(command: str, here: Path) -> None:
    """An attack: a folder from elsewhere whose settings name a module that lies beside it."""
    (here / "trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\ndef net(): ...\n")
    run = fedfew.train(fedfew.data.digits(4, "iid"), rounds=1, method="fedavg")
    run.settings["model"] = "trap:net"
    run.save("r")
    Path("r/config.yaml").write_text("model: trap:net\nmethod: fedavg\n")
    np.savez("new.npz", x=np.zeros((3, 1, 8, 8), np.float32), y=np.zeros(3, np.int64))
    words = {"select": ["--data", "new.npz"], "export": ["-o", "e"]}.get(command, [])
    if command in ("show", "report"):
        call(command, "r", *words)
    else:
        assert "the run was made with the module 'trap:net'" in refused(command, "r", *words)
    assert not Path("sprung").exists()
    assert "trap" not in sys.modules


def test_names_in_a_run_do_not_steer_the_terminal() -> None:
    data = fedfew.data.digits(2)
    hostile = replace(data, name="\x1b[2J[bold red]x")
    run = fedfew.train(hostile, "linear", "fedavg", rounds=1, device="cpu")
    run.state.events.append("round 1: \x1b]0;title\x07")
    run.save("hostile")
    out = call("show", "hostile").stdout
    assert "\x1b[2J" not in out
    assert "\x1b]0" not in out
    assert "\\x1b[2J[bold red]x" in out
    assert "\\x1b]0;title" in out
