"""``fedfew run``: flags, configuration files, resuming, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import fedfew
from fedfew.methods.hyperparameters import hyper_parameters
from tests.cli.small import ENVIRONMENT, SMALL
from tests.held_method import Hold
from tests.helpers import call, refused
from tests.methods.tiers import FIRST

LONG = ["run", *SMALL, "--rounds", "10", "--models", "2", "--checkpoint-every", "2"]
HELD = [sys.executable, "-m", "tests.held_method", *LONG]

pytestmark = pytest.mark.usefixtures("here")


def test_run_trains_with_the_flags_given(finished: Path) -> None:
    run = fedfew.load(finished)
    assert run.method == fedfew.FedFew(models=2, mu=0.003)
    assert (run.round, run.settings["batch_size"], run.settings["lr"], len(run.choice)) == (2, 10, 0.1, 4)  # digits' own


def test_run_chooses_a_fresh_folder_and_says_where() -> None:
    assert "runs/digits-fedavg-7 " in call("run", *SMALL, "--method", "fedavg", "--seed", "7").stdout.replace("\n", " ")
    assert "runs/digits-fedavg-7-2" in call("run", *SMALL, "--method", "fedavg", "--seed", "7").stdout
    assert len(list(Path("runs").glob("*/round-000002"))) == 2
    Path("data").mkdir()
    np.savez("data/wards.npz", x=np.eye(12, 3), y=np.arange(12) % 2)
    words = ["run", *SMALL, "--method", "fedavg", "--partition", "iid", "--dataset"]
    for dataset in ("data/wards.npz", str(Path("data/wards.npz").resolve())):  # of a path, the last part alone
        call(*words, dataset)
    assert {path.name for path in Path("runs").glob("wards*")} == {"wards-fedavg-0", "wards-fedavg-0-2"}


def test_run_json_is_one_document_and_nothing_else() -> None:
    result = call("run", *SMALL, "--method", "fedavg", "--participation", "0.5", "--json")
    document = json.loads(result.stdout)
    assert document["scores"]["served"]["clients"] == 4
    assert document["scores"]["adapted"]["clients"] == 2
    assert [c["adapted"] for c in document["clients"]].count(None) == 2  # absent: null, for NaN is no JSON
    assert document["curve"]["round"] == [1, 2]
    assert "round 2/2" in result.stderr


@pytest.mark.parametrize("method", sorted(FIRST))
def test_a_method_of_each_kind_runs(method: str) -> None:
    words = ["--models", "2"] if "models" in {hyperparameter.name for hyperparameter in hyper_parameters(method)} else []
    call("run", *SMALL, "--method", method, *words)


def test_published_is_the_preset() -> None:
    call("run", *SMALL, "--models", "2", "--published", "--folder", "r")
    assert fedfew.load("r").method == fedfew.FedFew.as_published(models=2)


def test_a_module_of_the_users_own(here: Path) -> None:
    (here / "mine_for_cli.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    call("run", *SMALL, "--method", "fedavg", "--model", "mine_for_cli:net", "--folder", "r")
    np.savez("new.npz", x=np.zeros((3, 1, 8, 8), np.float32), y=np.zeros(3, np.int64))
    assert "--model module:factory" in refused("select", "r", "--data", "new.npz")
    again = "was made with a model of your own, mine_for_cli:net: name it again (--model mine_for_cli:net)"
    sys.modules.pop("mine_for_cli")
    assert again in refused("run", "--resume", "--folder", "r")
    assert "mine_for_cli" not in sys.modules  # a folder does not make fedfew import anything
    call("run", "--resume", "--folder", "r", "--model", "mine_for_cli:net", "--rounds", "3")
    for command in ("compare", "advise-k"):
        assert again.replace("run in r", f"run in {command}") in refused(
            command, "--resume", "--folder", _folder_that_names_a_model(command)
        )
    own = ("--model", "mine_for_cli:net")
    assert json.loads(call("select", "r", "--data", "new.npz", *own, "--json").stdout)["model"] == 0
    assert "mine_for_cli:net" in call("show", "r").stdout  # scores need no model
    assert "there is no factory in mine_for_cli called 'nett'; did you mean 'net'?" in refused(
        "run", "--model", "mine_for_cli:nett"
    )
    assert "the module nowhere cannot be imported" in refused("run", "--model", "nowhere:net")


def _folder_that_names_a_model(name: str) -> str:
    Path(name).mkdir()
    Path(name, "config.yaml").write_text("model: mine_for_cli:net\n")
    return name


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
        (["my.yaml"], "(a file of settings: --config my.yaml)"),
        (["--method", "fedfew:models=4"], "hyperparameters do not follow the name here: give flags (--method fedfew"),
        (["--model", "4"], "the number of models is --models"),
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
        (["--resume", "--folder", "nowhere"], "there is no run in nowhere to continue"),
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


# -- configuration files ----------------------------------------------------------------------------------------------------


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_flags_win_over_the_file_and_the_file_over_what_is_recommended() -> None:
    config = write("c.yaml", "rounds: 3\nbatch-size: 7\nclients: 4\nmethod: {name: fedfew, models: 2, mu: 1e-3}\n")
    call("run", "--config", config, "--rounds", "1", "--mu", "0.5", "--folder", "r")
    settings = fedfew.load("r").settings
    assert (settings["rounds"], settings["batch_size"], settings["lr"]) == (1, 7, 0.1)
    assert (settings["method"]["models"], settings["method"]["mu"]) == (2, 0.5)


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


def test_a_configuration_file_that_is_not_there() -> None:
    assert "there is no file nowhere.yaml to read settings from" in refused("run", "--config", "nowhere.yaml")


def test_what_is_left_out_of_the_data_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    load = fedfew.data.load

    def skips(*args: object, **kwargs: object) -> fedfew.Federation:
        warnings.warn("left out 3 rows", fedfew.data.SkippedWarning, stacklevel=2)
        return load(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(fedfew.data, "load", skips)
    assert "note: left out 3 rows" in call("run", *SMALL, "--models", "2").stdout


def test_an_empty_file_changes_nothing() -> None:
    call("run", *SMALL, "--models", "2", "--folder", "without")
    call("run", *SMALL, "--models", "2", "--folder", "with", "--config", write("c.yaml", ""))
    assert Path("with/config.yaml").read_text() == Path("without/config.yaml").read_text()


# -- resuming ---------------------------------------------------------------------------------------------------------------


def test_a_run_is_not_overwritten(finished: Path) -> None:
    before = (finished / "config.yaml").read_text()
    assert "already holds a run: continue it (--resume)" in refused("run", "--folder", str(finished), "--lr", "3")
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
    for later in ("notes", "compare-digits/fedavg-0/round-000001"):
        Path("runs", later).mkdir(parents=True)
        Path("runs", later.split("/")[0], "config.yaml").write_text("a: 1")
    assert "the newest is runs/digits-fedfew-0" in refused("run", "--resume")
    assert "the newest is runs/compare-digits" in refused("compare", "--resume")


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


@pytest.mark.slow
def test_ctrl_c_then_resume_ends_as_if_nothing_had_happened(here: Path) -> None:
    hold = Hold(here)
    stopped = subprocess.Popen(
        [*HELD, "--folder", "r"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | hold.environment,
    )
    hold.wait()
    stopped.send_signal(signal.SIGINT)  # within round 4
    out, err = stopped.communicate(timeout=600)
    assert stopped.returncode == 130, err
    assert "To continue: fedfew run --resume --folder r" in err
    assert "Traceback" not in err
    assert "\x1b" not in out
    assert fedfew.load("r").round == 3
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        call("run", "--resume", "--folder", "r")
        call(*LONG, "--folder", "whole")
    finally:
        torch.set_num_threads(torch_threads)
    resumed, whole = fedfew.load("r"), fedfew.load("whole")
    assert resumed.round == whole.round == 10
    for one, other in zip(resumed.models, whole.models, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.slow
def test_a_second_process_in_the_same_folder_is_refused_and_the_first_undisturbed(here: Path) -> None:
    hold = Hold(here)
    environment = ENVIRONMENT | hold.environment
    first = subprocess.Popen([*HELD, "--folder", "r"], stdout=subprocess.PIPE, text=True, env=environment)
    hold.wait()  # in the middle of a round
    files = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    try:
        for words in (["--resume"], ["--method", "fedavg"], ["--resume", "--rounds", "300"]):
            assert f"process {first.pid} on" in refused("run", "--folder", "r", *words)
        assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == files
    finally:
        hold.go_on()
    first.communicate(timeout=600)
    assert first.returncode == 0
    call(*LONG, "--folder", "whole")
    assert np.allclose(fedfew.load("r").history.served_loss, fedfew.load("whole").history.served_loss, rtol=1e-5)


def test_ctrl_c_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fedfew, "train", interrupted)
    assert "Stopped." in call("run", *SMALL, "--models", "2", code=130).stderr
