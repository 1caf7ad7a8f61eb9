"""Methods of the user's own from the command line and in studies, imported only where the user names them."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import fedfew
from fedfew.cli import compare
from fedfew.methods import METHODS
from fedfew.studies import estimate, key
from fedfew.studies.execution import prepare
from fedfew.studies.options import Options
from fedfew.studies.plan import cells
from tests.cli.small import TINY
from tests.helpers import call, refused
from tests.studies.small import study

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar

from fedfew.methods import FedAvg, Method

@dataclass(frozen=True)
class QFair(FedAvg):
    """FedAvg that listens more to clients with a high loss."""

    q: float = 1.0
    """How much more."""

    name: ClassVar[str] = "qfair-of-a-user"

    def check(self):
        self.require(self.q >= 0, "q", "a number ≥ 0")

    def log_weights(self, reply, share, clients):
        return super().log_weights(reply, share, clients) + self.q * reply.losses.cpu().log()

class Nameless(FedAvg):
    pass

class Flat(FedAvg):
    name = "flat"
    def log_weights(self, reply, share, clients):
        return share.log()

class Nan(FedAvg):
    name = "nan"
    def log_weights(self, reply, share, clients):
        return reply.losses.cpu() * float("nan")

class Half(Method):
    name = "half"

def function():
    pass
'''
SPEC = "mine_own:QFair"


@pytest.fixture(autouse=True)
def own(here: Path) -> Iterator[None]:
    (here / "mine_own.py").write_text(SOURCE)
    (here / "mine_named.py").write_text(
        "from fedfew.methods import FedAvg, register\n@register\nclass Nameless(FedAvg):\n    pass\n"
    )
    before = dict(METHODS)
    key._source.cache_clear()
    yield
    METHODS.clear()
    METHODS.update(before)
    sys.modules.pop("mine_own", None)
    if str(here) in sys.path:
        sys.path.remove(str(here))


def forget() -> None:
    """As a new process would begin."""
    sys.modules.pop("mine_own", None)
    for name in [name for name in METHODS if name in (SPEC, "qfair-of-a-user")]:
        del METHODS[name]


def test_a_run_with_a_class_of_ones_own_is_that_of_python() -> None:
    call("run", *TINY, "--method", SPEC, "--q", "2", "--recipe", "plain", "--folder", "r")
    run = fedfew.load("r")
    assert run.method.settings() == {"name": "qfair-of-a-user", "q": 2.0}
    assert yaml.safe_load(Path("r/config.yaml").read_text())["method"] == {"name": SPEC, "q": 2.0}
    data = fedfew.data.load("digits", clients=4, sample=160)
    same = fedfew.train(data, "mlp", type(run.method)(q=2.0), rounds=2, batch_size=10, lr=0.1, engine="sequential", device="cpu")
    plain = fedfew.train(data, "mlp", "fedavg", rounds=2, batch_size=10, lr=0.1, engine="sequential", device="cpu")
    assert np.array_equal(run.history.served_loss, same.history.served_loss)
    assert not np.array_equal(run.history.served_loss, plain.history.served_loss)


@pytest.mark.slow
def test_a_folder_does_not_make_fedfew_import_anything(capsys: pytest.CaptureFixture[str]) -> None:
    call("run", *TINY, "--method", SPEC, "--folder", "r")
    call("compare", *TINY, "--methods", f"fedavg,{SPEC}", "--folder", "c")
    forget()
    assert "qfair-of-a-user" in call("show", "r").stdout  # scores need no method
    assert f"made with a method of your own, {SPEC}: name it again (--method {SPEC})" in refused(
        "run", "--resume", "--folder", "r"
    )
    assert f"{SPEC}: name it again (--methods fedavg,{SPEC}" in refused("compare", "--resume", "--folder", "c")
    assert "--method module:Class" in refused("export", "r", "-o", "e")
    assert "mine_own" not in sys.modules
    call("export", "r", "-o", "e", "--method", SPEC)
    forget()
    call("run", "--resume", "--folder", "r", "--method", SPEC, "--rounds", "3")
    assert fedfew.load("r").round == 3
    call("compare", "--resume", "--folder", "c", "--methods", f"fedavg,{SPEC}")


def test_select_and_predict_take_it() -> None:
    call("run", *TINY, "--method", SPEC, "--folder", "r")
    forget()
    x, y = fedfew.data.load("digits", clients=4, sample=160).train.of(0)
    np.savez("new.npz", x=x.numpy(), y=y.numpy())
    assert json.loads(call("select", "r", "--data", "new.npz", "--method", SPEC, "--json").stdout)["model"] == 0
    forget()
    assert len(call("predict", "r", "--data", "new.npz", "--client", "0", "--method", SPEC).stdout.splitlines()) == len(y) + 1


def test_compare_parses_both_kinds() -> None:
    assert compare.parse(f"fedavg,{SPEC},{SPEC}:q=2,fedfew:published,models=3") == {
        "fedavg": {"name": "fedavg"},
        SPEC: {"name": SPEC},
        f"{SPEC}:q=2": {"name": SPEC, "q": "2"},
        "fedfew:published,models=3": {"name": "fedfew", "published": "true", "models": "3"},
    }
    assert compare.parse(f"{SPEC},q=2") == {f"{SPEC},q=2": {"name": SPEC, "q": "2"}}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--method", "mine_own:QFare"], "there is no class in mine_own called 'QFare'; did you mean 'QFair'?"),
        (["--method", "nowhere:QFair"], "method is 'nowhere:QFair', but the module nowhere cannot be imported"),
        (["--method", "./mine_own.py:QFair"], "must be module:class, as mine:QFair for one in mine.py here"),
        (["--method", "mine_own.py:QFair"], "must be module:class"),
        (["--model", ":net"], "model is ':net', but must be module:factory"),
        (
            ["--method", "mine_own:Flat"],
            "flat: log_weights must return numbers of shape [clients, models], here [20, 1], but returned shape [20]",
        ),
        (["--method", "mine_own:Nan"], "here [20, 1], but returned NaN"),
        (["--method", "mine_own:function"], "which must be a subclass of fedfew.methods.Method"),
        (["--method", "mine_own:Half"], "which does not define client, init, serve"),
        (
            ["--method", "mine_own:Nameless"],
            "Nameless has the name 'fedavg', which is that of FedAvg: give the class one of its own",
        ),
        (["--method", "mine_named:Nameless"], "Nameless has the name 'fedavg', which is that of FedAvg: give the class one"),
        (["--method", SPEC, "--p", "2"], "there is no flag --p"),
        (["--method", SPEC, "--q", "-1"], "q must be a number ≥ 0"),
    ],
)
def test_mistakes(words: list[str], answer: str) -> None:
    assert answer in refused("run", *words)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("init", "the server's state and those of all clients"),
        ("client", "an Outcome"),
        ("log_weights", "a tensor"),
        ("aggregate", "a tree (a dict of tensors)"),
        ("serve", "a tree (a dict of tensors)"),
    ],
)
def test_a_forgotten_return_is_named(function: str, what: str) -> None:
    forgetful = type("Forgetful", (METHODS["fedavg"],), {"name": "forgetful", function: lambda self, *given: None})
    with pytest.raises(TypeError) as error:
        fedfew.train(fedfew.data.digits(4), "linear", forgetful(), rounds=1)
    assert str(error.value) == f"forgetful: {function} must return {what}, but returned None: is a return missing?"


def test_its_settings_are_listed() -> None:
    out = call("methods", SPEC).stdout
    assert "--q" in out
    assert "How much more." in out


def test_a_run_without_its_class_says_what_is_missing() -> None:
    call("run", *TINY, "--method", SPEC, "--folder", "r")
    forget()
    run = fedfew.load("r")
    assert len(run.history.served_accuracy) == 2
    with pytest.raises(ValueError, match="the run was made with the method 'qfair-of-a-user', which is not one of fedfew's own"):
        _ = run.models
    assert pickle.loads(pickle.dumps(run.method)).name == "qfair-of-a-user"


# -- studies -----------------------------------------------------------------------------------------------------------------


def own_study(**method: Any) -> Any:
    return study(rows={"Mine": {"method": {"name": SPEC, **method}}}, base={"rounds": 1})


def test_a_study_is_planned_without_an_import_and_its_key_knows_the_source(here: Path) -> None:
    (cell,) = cells(own_study(q=2))
    assert "mine_own" not in sys.modules
    assert estimate.work(cell.settings) > 0
    assert cells(own_study(q=3))[0].key != cell.key
    assert cells(own_study(q=2.0))[0].key == cell.key
    assert cells(own_study(q=[1, 2]))[0].key == cells(own_study(q=[1.0, 2.0]))[0].key != cell.key
    call("methods", SPEC)  # imports it
    assert cells(own_study(q=2))[0].key == cell.key
    (here / "mine_own.py").write_text(SOURCE + "# another line\n")
    key._source.cache_clear()
    assert cells(own_study(q=2))[0].key != cell.key


@pytest.mark.slow
def test_a_study_runs_it_in_worker_processes(here: Path) -> None:
    Path("s.yaml").write_text(own_study(q=2).text)
    out = call("study", "run", "s.yaml", "--workers", "1").stdout
    assert "Mine" in out
    prepared = prepare(own_study(q=2), Options(), Path("studies"))
    assert prepared.new == {}
    assert estimate.estimate(Path("studies"), {"k": cells(own_study(q=5))[0].settings}, 1).seconds["k"] is not None


@pytest.mark.slow
def test_mistakes_in_a_study_are_found_before_training() -> None:
    with pytest.raises(ValueError, match="the module nowhere cannot be found"):
        cells(study(rows={"Mine": {"method": "nowhere:QFair"}}))
    Path("s.yaml").write_text(own_study(p=2).text)
    assert "there is no setting 'p'" in call("study", "run", "s.yaml", "--workers", "1", code=2).stderr
    assert not list(Path("studies").glob("runs/*"))
