"""``fedfew advise-k``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedfew
from fedfew.cli.advise_k import _finite, _held_out, parse
from fedfew.evaluation.choosing_k import Observed
from fedfew.training.settings import Settings
from tests import helpers

SMALL = ["--rounds", "3", "--clients", "4", "--device", "cpu", "--engine", "stacked", "--seeds", "2", "--ks", "1-2"]


pytestmark = pytest.mark.usefixtures("here")


call = partial(helpers.call, "advise-k")


@pytest.mark.parametrize(("text", "ks"), [("1-3", [1, 2, 3]), ("4,1, 2-3,2", [1, 2, 3, 4]), ("5", [5])])
def test_ranges(text: str, ks: list[int]) -> None:
    assert parse(text) == ks


@pytest.mark.parametrize("text", ["0-2", "3-1", "two", "", "1-", "-3"])
def test_wrong_ranges(text: str) -> None:
    with pytest.raises(ValueError, match="ks "):
        parse(text)


@pytest.mark.slow
def test_it_says_which_and_why_and_goes_on_where_it_was() -> None:
    first = call(*SMALL, "--folder", "advice", "--mu", "0.003")
    assert "Take K = " in first.stdout
    assert "Plot: advice/advice.png" in first.stdout
    assert Path("advice/advice.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("advice/advice.svg").read_text()
    assert fedfew.load("advice/k2-1").method == fedfew.FedFew(models=2, mu=0.003)
    assert fedfew.load("advice/k2-1").history.round.tolist() == [3]  # nothing but the last round is scored
    written = Path("advice/k2-1/round-000003/state.json").stat().st_mtime_ns
    again = call("--resume", "--folder", "advice", "--json")
    assert Path("advice/k2-1/round-000003/state.json").stat().st_mtime_ns == written
    document = json.loads(again.stdout)
    assert set(document["ks"]) == {"1", "2"}
    assert document["why"][0] in first.stdout.replace("\n", "")
    assert "is not empty" in call(*SMALL, "--folder", "advice", code=2).stderr.replace("\n", " ")


def test_held_out_samples_of_a_prepared_federation() -> None:
    path = fedfew.data.write_prepared(fedfew.data.load("digits", clients=4), "a.fed")
    federation = _held_out(Settings(dataset=str(path)), 0.2, Console())
    assert federation.test.count.tolist() == [round(0.2 * n) for n in fedfew.data.load(path).train.count.tolist()]


def test_held_out_samples_come_from_the_training_data() -> None:
    call(*SMALL, "--ks", "1", "--seeds", "1", "--folder", "advice")
    about = json.loads(Path("advice/k1-0/federation.json").read_text())
    whole = fedfew.data.load("digits", clients=4)
    assert [a + b for a, b in zip(about["train"], about["test"], strict=True)] == whole.train.count.tolist()
    assert about["test"] == [round(0.15 * n) for n in (whole.train.count + whole.test.count).tolist()]


def test_the_strong_recipe() -> None:
    assert "Take K = 1" in call(*SMALL, "--ks", "1", "--seeds", "1", "--recipe", "strong", "--folder", "advice").stdout


def test_the_default_range_of_k_ends_at_the_number_of_clients() -> None:
    document = call(*SMALL[:-2], "--clients", "2", "--rounds", "1", "--seeds", "1", "--folder", "advice", "--json")
    assert "K up to 2: there are 2 clients" in document.stderr
    assert set(json.loads(document.stdout)["ks"]) == {"1", "2"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "3"], "--models cannot be given"),
        (["--method", "fedavg"], "advise-k chooses the number of models of fedfew"),
        (["--keep", "best"], "keep is 'best', but advise-k uses the validation data to compare numbers of models"),
        (["--early-stopping", "2"], "early_stopping is 2, but advise-k uses the validation data"),
        (["--attack", "sign-flip"], "attack is 'sign-flip', but advise-k compares all clients' losses, and attackers have none"),
        (["--hold-out", "0"], "hold_out must lie between 0 and 1, not 0.0"),
        (["--ks", "1-9"], "ks goes up to 9, but there are 4 clients"),
        (["--hold-out", "1.5"], "hold_out must lie between 0 and 1, not 1.5"),
        (["-o", "plot.doc"], "must end in .png"),
        (["--ms", "3"], "there is no flag --ms"),
    ],
)
def test_mistakes_are_answered_before_anything_is_trained(words: list[str], said: str) -> None:
    result = call(*SMALL, *words, code=2)
    assert said in " ".join(result.stderr.split())
    assert not Path("runs").exists()


@pytest.mark.slow
def test_differential_privacy_is_for_the_runs_that_send_models() -> None:
    assert "Take K = " in call(*SMALL, "--folder", "advice", "--dp-noise", "1", "--dp-delta", "0.01").stdout
    noise = [fedfew.load(f"advice/{run}").settings["dp_noise"] for run in ("k1-0", "k2-1", "local-0")]
    assert noise == [1.0, 1.0, 0.0]


def test_runs_with_infinite_losses_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Differences of infinite losses are no numbers, so that no number of models was near the best: IndexError."""
    diverged, fine = (Observed(2, seed, np.array([0.5, loss]), *[np.zeros(2)] * 2, 1) for seed, loss in ((0, np.inf), (1, 0.25)))
    assert _finite([diverged, fine], Console()) == (fine,)
    assert "note: K = 2, seed 0 is left out: its losses are infinite, training diverged" in capsys.readouterr().out
    with pytest.raises(ValueError, match="the losses of all runs are infinite: training diverged"):
        _finite([diverged], Console())
