"""How long it will take: work counted by hand, speed from finished runs or from timed steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedfew import methods
from fedfew.evaluation import costs
from fedfew.studies import estimate, execution, timed_steps
from fedfew.studies.folder import RunFolder
from fedfew.studies.options import Options
from fedfew.training.settings import Settings
from tests.studies.small import made, study

DIGITS = 1797


@pytest.mark.parametrize(
    ("method", "settings", "gradient", "choices"),
    [
        ("fedavg", {}, 1, 1),
        ("local", {}, 1, 1),
        ("fedfew", {"models": 4}, 4, 4),
        ("ditto", {}, 2, 1),
        ("fedbabu", {}, 1 + 10 / 10, 1),  # it fine-tunes for ten epochs in every tenth round, which is scored
    ],
)
def test_work_of_a_round(method, settings, gradient, choices):
    train, test = 0.75 * DIGITS, 0.25 * DIGITS
    scoring = 2 / 3 * choices * (test + (train if choices > 1 else 0)) / 10
    run = Settings(method=method, method_settings=settings, score_every=10)
    assert estimate.work(run) == pytest.approx(train * gradient + scoring)


@pytest.mark.parametrize("method", methods.METHODS)
def test_work_of_every_method(method):
    """FedFomo, for example, has None for "as many models as there are other clients"."""
    run = Settings(method=method, score_every=10**9)
    assert estimate.work(run) >= 0.75 * DIGITS


def test_work_grows_with_what_is_done():
    one = Settings(method="fedavg", score_every=10**9)
    assert estimate.work(Settings(method="fedavg", local_epochs=3, score_every=10**9)) == pytest.approx(3 * estimate.work(one))
    assert estimate.work(Settings(method="fedavg", participation=0.5, score_every=10**9)) == pytest.approx(estimate.work(one) / 2)
    assert estimate.work(Settings(method="fedavg", sample=100, score_every=10**9)) == pytest.approx(75, rel=1e-6)
    ifca = estimate.work(Settings(method="ifca", method_settings={"models": 3}, score_every=10**9))
    assert ifca == pytest.approx((1 + 3 / 3) * estimate.work(one), rel=1e-6)  # it chooses among 3 before it trains one


def test_a_setting_of_one_number_a_client_does_not_stop_the_estimate():
    run = Settings(method="fedfew", method_settings={"models": 2, "preference": [1.0] * 20}, score_every=10**9)
    assert estimate.work(run) == pytest.approx(0.75 * DIGITS * 2, rel=1e-6)


def test_rows_of_the_files_that_are_here_count(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "cifar10").mkdir()
    pq.write_table(pa.table({"label": list(range(40))}), tmp_path / "cifar10" / "train.parquet")
    assert estimate._samples("cifar10", str(tmp_path)) == 40
    assert estimate._samples("cifar100", str(tmp_path)) == 60_000
    assert estimate._samples("kvasir", str(tmp_path)) == estimate._samples("my.csv", None) == estimate.UNKNOWN


def test_finished_runs_of_the_same_kind_tell_the_speed(tmp_path: Path):
    planned = made(study(), tmp_path)
    path = RunFolder.of(tmp_path, planned[0].key)
    for cell, seconds in zip(planned, (30.0, 60.0), strict=True):
        result = RunFolder.of(tmp_path, cell.key).result
        result["run"]["seconds"] = seconds * estimate.work(cell.settings)  # so many a sample pass, three rounds
        RunFolder.of(tmp_path, cell.key).finish(result, keep_models=False)
    assert path.finished
    cell = planned[0]
    found = estimate.estimate(tmp_path, {"a": cell.settings, "b": cell.settings})
    assert found.seconds["a"] == pytest.approx(3 * estimate.work(cell.settings) * 15)  # the median of 10 and 20, three rounds
    assert (found.from_runs, found.from_steps) == (2, 0)
    assert found.how == "2 from the speed of similar runs in this folder"
    assert found.total(1) == pytest.approx(2 * found.seconds["a"])
    assert found.total(2) == found.total(4) == pytest.approx(found.seconds["a"])  # a run is not divided


def test_runs_of_packs_take_the_speed_of_such_runs(tmp_path: Path):
    alone, shared = made(study(), tmp_path)
    for cell, seconds, packed in ((alone, 30.0, 1), (shared, 6.0, 4)):
        result = RunFolder.of(tmp_path, cell.key).result
        result["run"] |= {"seconds": seconds * estimate.work(cell.settings), "packed": packed}  # in three rounds
        RunFolder.of(tmp_path, cell.key).finish(result, keep_models=False)
    runs = {"a": alone.settings, "b": alone.settings}
    found = estimate.estimate(tmp_path, runs, packed={"b"})
    assert found.seconds == pytest.approx({"a": 30 * estimate.work(alone.settings), "b": 6 * estimate.work(alone.settings)})
    assert found.as_if_alone == 0
    RunFolder.of(tmp_path, shared.key).path.joinpath("result.json").unlink()
    found = estimate.estimate(tmp_path, runs, packed={"b"})
    assert found.seconds["b"] == found.seconds["a"]
    assert found.how.endswith("2 from the speed of similar runs in this folder, 1 as if made alone, though packs take less time")


@pytest.mark.parametrize("broken", ["cost", "steps"])
def test_a_run_that_cannot_be_estimated_is_made_nevertheless(broken, tmp_path: Path, monkeypatch):
    """One method's cost raises an error, whatever that is, or no step can be timed."""
    found = study(base={"rounds": 1})

    def fails(method, *args, **kwargs):
        if broken == "steps" or method.name == "fedfew":
            raise ZeroDivisionError("no such cost")
        return cost(method, *args, **kwargs)

    cost = costs.cost
    monkeypatch.setattr(*((costs, "cost", fails) if broken == "cost" else (estimate, "timed", fails)))
    estimate._passes.cache_clear()
    prepared = execution.prepare(found, Options(), tmp_path, workers=1)
    assert [value is None for value in prepared.estimate.seconds.values()] == [broken == "steps", True]
    assert prepared.estimate.total(1) is None
    which = "fedavg: ZeroDivisionError: no such cost; fedfew: " if broken == "steps" else "fedfew: "
    assert f"without an estimate, {which}ZeroDivisionError: no such cost" in prepared.estimate.how
    assert "unknown" not in prepared.estimate.how
    assert [prepared._job(key, cell).seconds for key, cell in prepared.new.items()][1] == 1.0
    estimate._passes.cache_clear()


@pytest.fixture
def a_step_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On a clock of our own."""
    ticks = count()
    monkeypatch.setattr(timed_steps, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    timed_steps.timed.cache_clear()
    yield
    timed_steps.timed.cache_clear()


@pytest.mark.usefixtures("a_step_takes_a_second")
def test_without_any_a_few_steps_are_timed(tmp_path: Path):
    small = Settings(model="mlp", rounds=10, device="cpu")
    large = Settings(dataset="cifar10", model="cnn", batch_size=4, rounds=10, device="cpu")
    found = estimate.estimate(tmp_path, {"small": small, "large": large, "own": Settings(dataset="my.csv", device="cpu")})
    assert (found.from_runs, found.from_steps) == (0, 2)
    assert found.seconds["own"] is None
    assert found.total(1) is None
    twenty_clients = 20 * 4 * small.batch_size  # four batches each, in one stack
    assert found.seconds["small"] == pytest.approx(10 * estimate.work(small) / twenty_clients + estimate.BEFORE_AND_AFTER)
    assert found.seconds["large"] == pytest.approx(10 * estimate.work(large) / 4 + estimate.BEFORE_AND_AFTER)  # one batch
    assert "2 from training steps timed just now, 1 unknown" in found.how


@pytest.mark.usefixtures("a_step_takes_a_second")
def test_a_step_of_texts():
    assert timed_steps.timed(("ag-news", "textcnn", 2, "cpu"), 1) == 1 / 2  # two texts
    assert timed_steps.timed(("ag-news", "mlp", 2, "cpu"), 1) == 1 / 2  # of texts the default model is textcnn
    assert timed_steps.timed(("digits", "my:model", 2, "cpu"), 1) is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (80, "80 s"), (100, "2 min"), (3600, "60 min"), (7200, "2.0 h"), (4 * 86400, "4.0 days")]
)
def test_durations(seconds, words):
    assert estimate.format_duration(seconds) == words
