"""What is told of a run, and how a tool's trouble is kept away from it."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedfew
from fedfew import tracking
from fedfew.training.on_round import Progress
from tests.helpers import federation, linear


class Remembering:
    """A tool that remembers what it is told; ``fails`` names what it cannot do."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []

    def _do(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values))
        if name == self.fails:
            raise ConnectionError("the server is\ndown")

    def begin(self, settings: Mapping[str, Any], name: str, known: str | None) -> str | None:
        self._do("begin", dict(settings), name, known)
        return known or "run-1"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._do("log", step, dict(values))

    def end(self, finished: bool, files: Iterable[Path]) -> None:
        self._do("end", finished, list(files))

    def steps(self) -> list[int]:
        return [call[1] for call in self.calls if call[0] == "log"]


def trained(tracker: tracking.Tracker, **settings: Any) -> fedfew.Run:
    given: dict[str, Any] = {"rounds": 4, "score_every": 2, "lr": 0.1} | settings
    return fedfew.train(federation(), linear, fedfew.FedFew(models=2), on_round=tracker, **given)


def test_every_round_is_told_and_scored_ones_in_full() -> None:
    sink = Remembering()
    with tracking.Tracker({"it": sink}, None, "name") as track:
        run = trained(track)
        track.finish(run)
    _, settings, name, known = sink.calls[0]
    assert (name, known, settings["method.models"], settings["federation.clients"], settings["lr"]) == ("name", None, 2, 4, 0.1)
    assert sink.steps() == [1, 2, 3, 4, 4]
    first, second = sink.calls[1][2], sink.calls[2][2]
    assert set(first) == {"loss"}
    history = run.history
    assert second["served/mean"] == pytest.approx(history.served_accuracy[0].mean())
    assert second["adapted/min"] == pytest.approx(history.adapted_accuracy[0].min())
    assert second["served/loss"] == pytest.approx(history.served_loss[0].mean(), rel=1e-5)
    assert second["g"] == pytest.approx(history.g[0])
    assert second["bytes_up"] == history.bytes_up[0]
    w = history.w[0].astype(float)
    assert second["weights/largest"] == pytest.approx(w.max(1).mean())
    assert second["weights/models_in_use"] == len(set(history.choice[0].tolist()))
    alpha = history.alpha[0].astype(float)
    assert second["weights/alpha_cv"] == pytest.approx(alpha.std() / alpha.mean())
    assert {"served/std", "served/worst_tenth", "served/jain", "weights/entropy", "seconds", "bytes_down"} <= set(second)
    last = sink.calls[-2][2]
    assert last["final/served/mean"] == pytest.approx(history.served_accuracy[-1].mean())
    assert sink.calls[-1] == ("end", True, [])


def test_the_end_is_told_of_the_models_in_use_with_own_metrics_and_what_the_task_has() -> None:
    x = np.arange(24, dtype="f4").reshape(2, 12, 1) / 24
    data = fedfew.Federation.from_arrays([(one, 2 * one) for one in x], [(one, 2 * one) for one in x], task="regression")
    sink = Remembering()
    metrics = {"worst": lambda outputs, y: (outputs - y).abs().max()}
    with tracking.Tracker({"it": sink}, None, "name") as track:
        run = fedfew.train(data, "linear", "fedavg", rounds=2, metrics=metrics, on_round=track, device="cpu")
        run.state.best = {"round": torch.tensor(1)}  # as with keep="best"
        track.finish(run, {"mae": [0.5, 1.0], "samples": [12, 12]})
    first, last = run.history.served_worst.mean(1)
    assert [call[2]["served/worst"] for call in sink.calls[1:3]] == pytest.approx([first, last])
    told = sink.calls[-2][2]
    assert told["final/served/worst"] == pytest.approx(first) != pytest.approx(last)
    assert told["final/served/mean"] == pytest.approx(run.history.served_score[0].mean())
    assert told["final/served/mae"] == 0.75


def test_what_is_not_a_number_is_left_out() -> None:
    told = Progress(1, 2, float("nan"), None, None, 0.0, [])
    assert tracking.round_values(told) == {}


def test_settings_are_flat_and_short() -> None:
    flat = tracking.flattened({"a": {"b": {"c": 1}, "d": None}, "many": list(range(1000)), "none": ()})
    assert flat["a.b.c"] == 1
    assert flat["a.d"] is None
    assert len(flat["many"]) == 500
    assert flat["many"].startswith("[0, 1, 2")
    assert flat["none"] == "()"


@pytest.mark.parametrize("fails", ["begin", "log", "end"])
def test_a_tool_that_fails_is_left_out_with_one_warning(fails: str) -> None:
    bad, good = Remembering(fails), Remembering()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tracking.Tracker({"bad": bad, "good": good}, None, "name") as track:
            run = trained(track)
            track.finish(run)
    mine = [w for w in told if issubclass(w.category, tracking.TrackingWarning)]
    assert [str(w.message) for w in mine] == ["tracking with bad failed, training continues without it: the server is down"]
    assert run.round == 4
    assert good.steps() == [1, 2, 3, 4, 4]
    assert len([call for call in bad.calls if call[0] == fails]) == 1


def test_a_run_that_goes_on_is_the_same_tracked_run_and_nothing_is_told_twice(tmp_path: Path) -> None:
    first = Remembering()
    with tracking.Tracker({"it": first}, tmp_path, "name") as track:

        def stop_in_round_3(told: Progress) -> None:
            track(told)
            if told.round == 3:
                raise RuntimeError("killed")

        with pytest.raises(RuntimeError, match="killed"):
            trained(stop_in_round_3, folder=tmp_path, checkpoint_every=2)  # type: ignore[arg-type]  # called as a tracker is
    assert first.steps() == [1, 2, 3]
    assert first.calls[-1] == ("end", False, [])
    second = Remembering()
    with tracking.Tracker({"it": second}, tmp_path, "name") as track:
        run = trained(track, folder=tmp_path, checkpoint_every=2, resume=True)  # from round 2 on: 3 is done again
        track.finish(run)
    assert second.calls[0][3] == "run-1"
    assert second.steps() == [4, 4]
    third = Remembering()
    with tracking.Tracker({"it": third}, tmp_path, "name") as track:
        track.finish(trained(track, folder=tmp_path, checkpoint_every=2, resume=True))
    assert third.calls == []  # nothing is new


def test_a_round_that_could_not_be_told_is_told_when_it_is_done_again(tmp_path: Path) -> None:
    with tracking.Tracker({"it": Remembering("log")}, tmp_path, "name", warn=lambda text: None) as track:
        track(Progress(1, 2, 0.5, None, None, 0.0, []))
    assert json.loads((tmp_path / "tracking.json").read_text())["it"]["round"] == 0
    assert list(tracking.kept(tmp_path)) == ["it"]
    assert list(tracking.kept(tmp_path / "nowhere")) == []


def test_files_that_are_there_are_sent(tmp_path: Path) -> None:
    (tmp_path / "there.png").write_bytes(b"")
    sink = Remembering()
    track = tracking.Tracker({"it": sink}, None, "name")
    run = trained(track)
    track.finish(run, {"macro_f1": [0.5, None], "auc": [None, None]}, [tmp_path / "there.png", tmp_path / "absent.html"])
    assert sink.calls[-1] == ("end", True, [tmp_path / "there.png"])
    assert sink.calls[-2][2]["final/served/macro_f1"] == 0.5
    assert "final/served/auc" not in sink.calls[-2][2]


def test_an_infinite_score_is_left_out_and_ends_no_run() -> None:
    """R² is −∞ and losses are ∞ where training diverges: the tracker ended the run before it could say so."""
    samples = [(np.full((8, 3), 1e8, "f4"), np.arange(8, dtype="f4")) for _ in range(3)]
    data = fedfew.Federation.from_arrays(samples, samples, task="regression")
    sink = Remembering()
    with tracking.Tracker({"it": sink}, None, "name") as track:
        run = fedfew.train(data, "linear", "fedavg", rounds=1, lr=1e-4, batch_size=8, on_round=track)
        track.finish(run)
    assert np.isinf(run.history.served_loss).any()
    assert sink.steps() == [1, 1]
    assert "served/loss" not in sink.calls[1][2]
    assert "final/served/loss" not in sink.calls[-2][2]
    assert sink.calls[1][2]["loss"] > 0


def test_without_tools_nothing_is_written(tmp_path: Path) -> None:
    with tracking.open(folder=tmp_path) as track:
        track.finish(trained(track))
    assert list(tmp_path.iterdir()) == []


def test_wrong_names() -> None:
    with pytest.raises(ValueError, match="there is no tracking tool called 'tensorbord'; did you mean 'tensorboard'"):
        tracking.open("tensorbord")
    with pytest.raises(ValueError, match=r"tensorboard:FOLDER"):
        tracking.open("tensorboard")
    with pytest.raises(ValueError, match="twice"):
        tracking.open("tensorboard:a", "tensorboard:a")


@pytest.mark.parametrize(
    ("tool", "package"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_a_missing_package_names_its_extra(tool: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for module in [name for name in sys.modules if name.startswith(("mlflow.", f"fedfew.tracking.{tool}"))]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=rf"pip install .*\[{tool}\]'"):
        tracking.open(f"{tool}:x")


def test_progress_has_the_newest_entry() -> None:
    seen: list[Progress] = []
    fedfew.train(federation(), linear, "fedavg", rounds=2, on_round=seen.append)
    assert seen[1].history is not None
    assert int(seen[1].history.last("round")) == 2
    assert seen[0].settings["rounds"] == 2
    assert np.isfinite(seen[0].loss)
