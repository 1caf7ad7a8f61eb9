"""The command line: every command, and what it answers to mistakes."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

import fedfew
from fedfew.cli import app, compare, flags, progress
from fedfew.evaluation.metrics import evaluate
from fedfew.methods import METHODS
from fedfew.methods.hyperparameters import hyper_parameters
from fedfew.training.settings import RECOMMENDED, TYPES, Settings, resolve
from fedfew.util.conversion import convert
from tests.helpers import call

SMALL = ["--rounds", "2", "--clients", "4", "--device", "cpu", "--engine", "stacked"]
PNG = b"\x89PNG"


pytestmark = pytest.mark.usefixtures("here")


def refused(*words: str) -> str:
    """The one paragraph that a mistake is answered with."""
    result = call(*words, code=2)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FedFew with two models."""
    folder = tmp_path_factory.mktemp("runs") / "fedfew"
    call("run", *SMALL, "--models", "2", "--mu", "0.003", "--folder", str(folder))
    return folder


# -- run ---------------------------------------------------------------------------------------------------------------------


def test_flags_carry_the_names_and_defaults_of_train() -> None:
    arguments = inspect.signature(fedfew.train).parameters
    shared = {name: p.default for name, p in arguments.items() if name in TYPES}
    assert set(arguments) - set(shared) == {"federation", "folder", "resume", "on_round"}
    assert shared == {name: getattr(Settings, name) for name in shared}


def test_no_method_has_a_setting_that_a_flag_of_run_hides() -> None:
    taken = {*TYPES, "config", "folder", "resume", "json"}
    for name in METHODS:
        assert not taken & {knob.name for knob in hyper_parameters(name)}, name


def test_recommended_settings_exist() -> None:
    for values in RECOMMENDED.values():
        assert set(values) <= set(TYPES)
    assert set(RECOMMENDED) <= set(fedfew.data.names())


def test_run_trains_with_the_flags_given(finished: Path) -> None:
    run = fedfew.load(finished)
    assert run.method == fedfew.FedFew(models=2, mu=0.003)
    assert (run.round, run.settings["batch_size"], run.settings["lr"], len(run.choice)) == (2, 10, 0.1, 4)  # digits' own


def test_run_chooses_a_fresh_folder_and_says_where() -> None:
    assert "runs/digits-fedavg-7 " in call("run", *SMALL, "--method", "fedavg", "--seed", "7").stdout.replace("\n", " ")
    assert "runs/digits-fedavg-7-2" in call("run", *SMALL, "--method", "fedavg", "--seed", "7").stdout
    assert len(list(Path("runs").glob("*/round-000002"))) == 2


def test_run_json_is_one_document_and_nothing_else() -> None:
    result = call("run", *SMALL, "--method", "fedavg", "--participation", "0.5", "--json")
    document = json.loads(result.stdout)
    assert document["scores"]["served"]["clients"] == 4
    assert document["scores"]["adapted"]["clients"] == 2
    assert [c["adapted"] for c in document["clients"]].count(None) == 2  # absent: null, for NaN is no JSON
    assert document["curve"]["round"] == [1, 2]
    assert "round 2/2" in result.stderr


@pytest.mark.parametrize("method", METHODS)
def test_every_registered_method_runs(method: str) -> None:
    words = ["--models", "2"] if "models" in {knob.name for knob in hyper_parameters(method)} else []
    call("run", *SMALL, "--method", method, *words)


def test_switches_and_spellings_of_the_methods_flags() -> None:
    read = flags.of_the_method(["--mu=0.5", "--no-normalise", "--loss-at", "received", "--preference", "1,2"])
    assert resolve({}, read).method_settings == {
        "mu": 0.5,
        "normalise": False,
        "loss_at": "received",
        "preference": (1.0, 2.0),
    }
    assert resolve({}, {"published": None}).method_settings == {"published": True}
    assert resolve({}, {"normalise": "off"}).method_settings == {"normalise": False}


def test_published_is_the_preset() -> None:
    call("run", *SMALL, "--models", "2", "--published", "--folder", "r")
    assert fedfew.load("r").method == fedfew.FedFew.as_published(models=2)


def test_a_module_of_the_users_own(here: Path) -> None:
    (here / "mine_for_cli.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    call("run", *SMALL, "--method", "fedavg", "--model", "mine_for_cli:net", "--folder", "r")
    np.savez("new.npz", x=np.zeros((3, 1, 8, 8), np.float32), y=np.zeros(3, np.int64))
    assert json.loads(call("select", "r", "--data", "new.npz", "--json").stdout)["model"] == 0
    assert "there is no factory in mine_for_cli called 'nett'; did you mean 'net'?" in refused(
        "run", "--model", "mine_for_cli:nett"
    )
    assert "the module nowhere cannot be imported" in refused("run", "--model", "nowhere:net")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--modles", "4"], "there is no flag --modles; did you mean --models?"),
        (["--lrr=1"], "there is no flag --lrr; did you mean --lr?"),
        (["--local_epoch", "3"], "did you mean --local-epochs?"),
        (["--method", "fedavg", "--mu", "1"], "there is no flag --mu; it belongs to fedfew"),
        (["--wholly-different"], "'fedfew run --help' lists"),
        (["--normalize", "--mu", "1"], "did you mean --normalise?"),
        (["--models"], "--models needs a value: a whole number"),
        (["--models", "2.5"], "models of fedfew must be a whole number, not '2.5'"),
        (["--send", "letters"], "send of fedfew must be update or gradient, not 'letters'"),
        (["--mu", "-1"], "mu must be a finite number > 0"),
        (["stray"], "'stray' is not expected here"),
        (["--method", "fedfwe"], "there is no method 'fedfwe'; did you mean 'fedfew'?"),
        (["--model", "mpl"], "did you mean 'mlp'?"),
        (["--dataset", "digit"], "digits"),
        (["--partition", "rotatoin"], "did you mean 'rotation'?"),
        (["--engine", "steam"], "engine must be auto, stacked, threaded or sequential"),
        (["--device", "toaster"], "device must be"),
        (["--lr", "-1"], "lr must be a finite number > 0"),
        (["--lr", "fast"], "--lr"),
        (["--clients", "4", "--models", "5"], "models must be at most the number of clients (4)"),
        (["--resume"], "--resume needs --folder"),
        (["--resume", "--folder", "nowhere"], "there is no run in nowhere to go on with"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_mistakes_are_answered_in_a_paragraph(words: list[str], answer: str) -> None:
    assert answer in refused("run", *words)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())  # nothing is left behind


def test_diverging_is_told_with_advice() -> None:
    result = call("run", *SMALL, "--method", "fedavg", "--lr", "1e30", "--rounds", "40", "--folder", "r", code=2)
    assert "training diverged" in result.stderr
    assert "Lower lr" in result.stderr


def test_an_unforeseen_error_is_a_paragraph_too_unless_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr(fedfew, "train", broken)
    assert "ZeroDivisionError: oh no ('fedfew --debug …' shows where)" in refused("run", *SMALL, "--models", "2")
    assert isinstance(CliRunner().invoke(app, ["--debug", "run", *SMALL, "--models", "2"]).exception, ZeroDivisionError)


# -- configuration -----------------------------------------------------------------------------------------------------------


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_flags_win_over_the_file_and_the_file_over_what_is_recommended() -> None:
    config = write("c.yaml", "rounds: 3\nbatch-size: 7\nclients: 4\nmethod: {name: fedfew, models: 2, mu: 1e-3}\n")
    call("run", "--config", config, "--rounds", "1", "--mu", "0.5", "--folder", "r")
    settings = fedfew.load("r").settings
    assert (settings["rounds"], settings["batch_size"], settings["lr"]) == (1, 7, 0.1)
    assert (settings["method"]["models"], settings["method"]["mu"]) == (2, 0.5)


def test_a_method_may_be_a_name_with_its_settings_beside_it() -> None:
    settings = resolve({}, {}, {"method": "fedfew", "models": 5, "preference": [1, 2]})
    assert settings.method_settings == {"models": 5, "preference": (1.0, 2.0)}


def test_settings_of_another_method_do_not_survive_a_change_of_method() -> None:
    assert resolve({"method": "fedavg"}, {}, {"method": {"name": "fedfew", "models": 4}}).method_settings == {}


def test_what_run_keeps_is_a_config_file(finished: Path) -> None:
    call("run", "--config", str(finished / "config.yaml"), "--folder", "again")
    first, again = fedfew.load(finished), fedfew.load("again")
    assert torch.equal(torch.from_numpy(first.history.served_loss), torch.from_numpy(again.history.served_loss))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("roundss: 3", "there is no setting 'roundss'; did you mean 'rounds'?"),
        ("method: {name: fedfew, modles: 3}", "there is no setting 'modles'; did you mean 'models'?"),
        ("method: {models: 3}", "without 'name'"),
        ("method: 3", "method must be text, not 3"),
        ("rounds: many", "rounds must be a whole number, not 'many'"),
        ("rounds: 2.5", "rounds must be a whole number, not 2.5"),
        ("rounds: true", "rounds must be a whole number, not True"),
        ("- rounds", "must hold names and values"),
        ("rounds: [", "is not a YAML file that can be read"),
    ],
)
def test_a_bad_file_is_answered(text: str, answer: str) -> None:
    assert answer in refused("run", "--config", write("c.yaml", text))


@pytest.mark.parametrize(
    ("value", "hint", "converted"),
    [
        ("none", str | None, None),
        ("3", int | None, 3),
        ("1;2", tuple[float, ...], (1.0, 2.0)),
        (2.0, int, 2),
        ("Yes", bool, True),
        ("2", Literal[1, 2], 2),
    ],
)
def test_conversion(value: object, hint: object, converted: object) -> None:
    assert convert(value, hint, "x") == converted


def test_conversion_says_what_would_be_right() -> None:
    with pytest.raises(ValueError, match=r"x must be a whole number, or none, not 'a'"):
        convert("a", int | None, "x")


def test_what_is_left_out_of_the_data_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    load = fedfew.data.load

    def skips(*args: object, **kwargs: object) -> fedfew.Federation:
        warnings.warn("left out 3 rows", fedfew.data.SkippedWarning, stacklevel=2)
        return load(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(fedfew.data, "load", skips)
    assert "note: left out 3 rows" in call("run", *SMALL, "--models", "2").stdout


def test_an_empty_file_changes_nothing() -> None:
    call("run", *SMALL, "--models", "2", "--config", write("c.yaml", ""))


# -- resume ------------------------------------------------------------------------------------------------------------------


def test_a_run_is_not_overwritten(finished: Path) -> None:
    before = (finished / "config.yaml").read_text()
    assert "already holds a run: go on with it (--resume)" in refused("run", "--folder", str(finished), "--lr", "3")
    assert "belongs to another run" in refused("run", "--folder", str(finished), "--resume", "--lr", "3")
    assert (finished / "config.yaml").read_text() == before


def test_resume_with_more_rounds_goes_on_and_is_remembered() -> None:
    call("run", *SMALL, "--models", "2", "--folder", "r")
    call("run", "--resume", "--folder", "r", "--rounds", "4")
    assert fedfew.load("r").round == 4
    assert yaml.safe_load(Path("r/config.yaml").read_text())["rounds"] == 4
    call("run", "--resume", "--folder", "r")  # nothing left to do


def test_resume_names_the_newest_run_when_none_is_given() -> None:
    call("run", *SMALL, "--models", "2")
    assert "the newest is runs/digits-fedfew-0" in refused("run", "--resume")


def test_a_run_made_from_python_is_resumed_with_the_same_flags() -> None:
    federation = fedfew.data.load("digits", clients=4, partition="rotation")
    fedfew.train(federation, "mlp", "fedavg", rounds=2, batch_size=10, lr=0.1, folder="r")
    call("run", "--resume", "--folder", "r", "--clients", "4", "--method", "fedavg", "--rounds", "3")
    assert fedfew.load("r").round == 3


def test_a_refused_checkpoint_is_told() -> None:
    call("run", *SMALL, "--models", "2", "--folder", "r", "--checkpoint-every", "1")
    damaged = Path("r/round-000002/state.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert "refused: round-000002 is damaged" in call("run", "--resume", "--folder", "r").stdout


# -- a real terminal, a real Ctrl-C ------------------------------------------------------------------------------------------

LONG = ["run", *SMALL, "--rounds", "200", "--models", "2", "--score-every", "50", "--checkpoint-every", "100"]
PROGRAM = [sys.executable, "-c", "from fedfew.cli import main; main()"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}


def test_ctrl_c_then_resume_ends_as_if_nothing_had_happened() -> None:
    stopped = subprocess.Popen(
        [*PROGRAM, *LONG, "--folder", "r"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if "round" in line:  # the first of at most twenty lines
            stopped.send_signal(signal.SIGINT)
            break
    out, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, err
    assert "To go on: fedfew run --resume --folder r" in err
    assert "Traceback" not in err
    assert "\x1b" not in out
    at = fedfew.load("r").round
    assert 10 <= at < 200
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        call("run", "--resume", "--folder", "r")
        call(*LONG, "--folder", "whole")
    finally:
        torch.set_num_threads(torch_threads)
    resumed, whole = fedfew.load("r"), fedfew.load("whole")
    assert resumed.round == whole.round == 200
    for one, other in zip(resumed.models, whole.models, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name


def test_a_bar_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    shown = subprocess.Popen(
        [*PROGRAM, "compare", *SMALL, "--rounds", "30", "--methods", "local,fedavg", "--folder", "r"],
        stdout=theirs,
        stderr=theirs,
        env=ENVIRONMENT | {"TERM": "xterm"},
    )
    os.close(theirs)
    text = read_all(ours, shown)
    assert shown.wait() == 0, text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"✓ local +30 rounds +loss [\d.]+ +served [\d.]+% +adapted [\d.]+%", plain), plain
    assert "2/2 fedavg" in plain
    assert "left" in plain
    assert "\x1b[" in text


def read_all(terminal: int, process: subprocess.Popen[bytes]) -> str:
    text, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # closed at the other end
                break
            if not piece:
                break
            text += piece
        elif process.poll() is not None:
            break
    os.close(terminal)
    return text.decode()


def test_ctrl_c_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fedfew, "train", interrupted)
    assert "Stopped." in call("run", *SMALL, "--models", "2", code=130).stderr


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


def told(round: int, rounds: int, seconds: float = 1.0, events: list[str] | None = None) -> fedfew.Progress:
    return fedfew.Progress(round, rounds, 0.5, None, None, seconds, events or [])


def test_plain_lines_are_few_and_events_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    with progress.display(Console()) as display:
        on_round = display.run("x")
        for number in range(1, 1001):
            on_round(told(number, 1000, events=["left out"] if number == 3 else []))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert lines[0] == "left out"
    assert lines[-1] == "x: round 1000/1000  loss 0.500"


def test_bars_show_events(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    with progress.display(Console(force_terminal=True)) as display:
        on_round = display.run("x")
        on_round(told(5, 6, events=["client 3 left out"]))
        on_round(told(6, 6))
    assert "client 3 left out" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "words"), [(0.04, "0.0 s"), (42.4, "42 s"), (61, "1 min 01 s"), (7261, "2 h 01 min")])
def test_durations(seconds: float, words: str) -> None:
    assert progress._duration(seconds) == words


# -- compare -----------------------------------------------------------------------------------------------------------------


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
    config = write("c.yaml", "methods: local,fedavg\nseeds: 1\nrounds: 1\nclients: 4\n")
    assert list(json.loads(call("compare", "--config", config, "--json").stdout)["methods"]) == ["local", "fedavg"]


def test_a_comparison_that_cannot_begin_leaves_nothing_behind() -> None:
    assert "lr must be" in call("compare", "--lr", "-1", code=2).stderr
    assert not list(Path("runs").iterdir())


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
        (["--methods", "local,local"], "twice"),
        (["--methods", "locl"], "did you mean 'local'?"),
        (["--methods", "fedfew:modles=3"], "did you mean 'models'?"),
        (["--methods", "fedfew:models=x"], "models of fedfew must be a whole number"),
        (["--seeds", "0"], "--seeds"),
        (["--methds", "local"], "--methods"),
        (["-o", "plot.doc"], "must end in .png"),
        (["--clients", "2", "--methods", "fedfew:models=3"], "models must be at most the number of clients (2)"),
        (["--method", "local"], "--methods"),
    ],
)
def test_mistakes_in_a_comparison(words: list[str], answer: str) -> None:
    assert answer in refused("compare", *words)


# -- show, select, methods, version, demo ------------------------------------------------------------------------------------


def test_show(finished: Path) -> None:
    out = call("show", str(finished), "--png", "curves.png").stdout
    assert Path("curves.png").read_bytes()[:4] == PNG
    for word in ("digits-rotation", "mu 0.003", "worst client", "samples", "group"):
        assert word in out
    document = json.loads(call("show", str(finished), "--json").stdout)
    assert len(document["clients"]) == len(document["data"]["train"]) == 4
    assert document["settings"]["method"]["models"] == 2


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
    assert "there is no checkpoint in nowhere" in refused("show", "nowhere")
    assert "did you mean" in refused("shwo", "nowhere").lower()


def test_select_takes_the_model_with_the_least_loss(finished: Path) -> None:
    x, y = fedfew.data.digits(4).train.of(1)
    np.savez("mine.npz", x=x.numpy(), y=y.numpy())
    document = json.loads(call("select", str(finished), "--data", "mine.npz", "--validation", "0", "--json").stdout)
    assert document["model"] == fedfew.select(fedfew.load(finished).models, x, y)
    losses = [model["loss"] for model in document["models"]]
    assert losses.index(min(losses)) == document["model"]
    assert f"Model {document['model']} fits best." in call("select", str(finished), "--data", "mine.npz").stdout


@pytest.mark.parametrize(
    ("arrays", "answer"),
    [
        ({"x": np.zeros((2, 1, 8, 8))}, "the arrays x and y"),
        ({"x": np.zeros((2, 9)), "y": np.zeros(2, int)}, "samples of shape [1, 8, 8]"),
        ({"x": np.zeros((0, 1, 8, 8)), "y": np.zeros(0, int)}, "samples of shape"),
        ({"x": np.zeros((2, 1, 8, 8)), "y": np.array([0, 10])}, "whole numbers from 0 to 9"),
        ({"x": np.zeros((2, 1, 8, 8)), "y": np.array([0.5, 1])}, "whole numbers from 0 to 9"),
    ],
)
def test_select_refuses_data_that_do_not_fit(finished: Path, arrays: dict[str, np.ndarray], answer: str) -> None:
    np.savez("bad.npz", **arrays)
    assert answer in refused("select", str(finished), "--data", "bad.npz")


def test_select_needs_a_file_and_models(finished: Path) -> None:
    assert "there is no file nowhere.npz" in refused("select", str(finished), "--data", "nowhere.npz")
    assert "must be a .npz file" in refused("select", str(finished), "--data", write("text.npz", "not an archive"))
    call("run", *SMALL, "--method", "local", "--folder", "r")
    np.savez("mine.npz", x=np.zeros((1, 1, 8, 8)), y=np.zeros(1, int))
    assert "local keeps no models on the server" in refused("select", "r", "--data", "mine.npz")


def test_methods_lists_all_and_explains_one() -> None:
    listed = call("methods").stdout
    assert all(name in listed for name in METHODS)
    one = call("methods", "fedfew").stdout
    assert "--weigh-samples" in one
    assert "adapted:" in one
    document = json.loads(call("methods", "--json").stdout)
    assert list(document) == list(METHODS)
    settings = json.loads(call("methods", "fedfew", "--json").stdout)["fedfew"]["settings"]
    assert {key: value for key, value in settings[3].items() if key != "about"} == {
        "name": "normalise",
        "value": "true or false",
        "default": True,
        "published": False,
    }
    assert "did you mean 'ditto'?" in refused("methods", "dito")


def test_every_knob_is_documented() -> None:
    for name in METHODS:
        for knob in hyper_parameters(name):
            assert knob.about, f"{name}: {knob.name} has no docstring"


def test_a_method_typed_into_a_session_has_knobs_without_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, type] = {}
    exec("from fedfew import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n", space)
    monkeypatch.setitem(METHODS, "mine", space["Mine"])
    assert [knob.name for knob in hyper_parameters("mine")] == ["published"]


def test_version() -> None:
    assert call("version").stdout == call("--version").stdout == f"fedfew {fedfew.__version__}\n"


@pytest.mark.parametrize("command", ["run", "compare", "show", "select", "methods", "demo", "bench", "version"])
def test_every_command_explains_itself(command: str) -> None:
    assert "Usage: fedfew" in call(command, "--help").stdout
    assert command in call("--help").stdout


def test_demo() -> None:
    out = call("demo", "--rounds", "3").stdout
    assert Path("demo/demo.png").read_bytes()[:4] == PNG
    for word in ("local only", "FedAvg", "FedFew, 4 models", "270°", "worst client", "groups were"):
        assert word in out
    assert "with 0 of 2 seeds" in call("demo", "--rounds", "1", "--seeds", "2", "-o", "d.png").stdout
    assert "must end in .png" in refused("demo", "-o", "d.txt")


def test_the_verdict_of_the_demo() -> None:
    from fedfew.cli.demo import _verdict

    assert "The four groups were found" in _verdict([True])
    assert "Try another --seed" in _verdict([False])
    assert "with 2 of 3 seeds" in _verdict([True, False, True])


def test_demo_finds_the_groups() -> None:
    document = json.loads(call("demo", "--json").stdout)
    assert document["groups_found"] == [True]
    served = {label: seeds[0]["served"]["mean"] for label, seeds in document["scores"].items()}
    assert served["FedFew, 4 models"] > max(served["local only"], served["FedAvg"]) + 0.03


# -- completion and imports --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("fedfew run --method ", set(METHODS)),
        ("fedfew run --dataset dig", {"digits"}),
        ("fedfew run --model ml", {"mlp"}),
        ("fedfew compare --methods local,if", {"local,ifca"}),
        ("fedfew methods fedp", {"fedprox"}),
    ],
)
def test_names_are_completed(typed: str, expected: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1), "_FEDFEW_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, [], prog_name="fedfew", env=words)
    assert set(result.stdout.split()) == expected


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_loads_no_plotting_nor_scikit_learn_for_help() -> None:
    code = "import sys, fedfew.cli; print([m for m in ('matplotlib', 'sklearn', 'yaml', 'pydantic') if m in sys.modules])"
    assert in_a_fresh_process(code) == "[]\n"


NEEDS_PYDANTIC = any(r.startswith("pydantic") for r in importlib.metadata.requires("typer") or [] if "extra ==" not in r)


@pytest.mark.skipif(NEEDS_PYDANTIC, reason="this version of typer needs pydantic itself (0.29 does, those before do not)")
def test_everything_runs_without_pydantic() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "sys.argv = ['fedfew', 'run', '--rounds', '1', '--clients', '4', '--models', '2']\n"
        "from fedfew.cli import main; main()"
    )
    assert "round 1/1" in in_a_fresh_process(code)


def test_a_configuration_file_that_is_not_there() -> None:
    assert "there is no file nowhere.yaml to read settings from" in refused("run", "--config", "nowhere.yaml")
