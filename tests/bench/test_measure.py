"""Measuring: figures that fit together, variants that fail, results that are wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fedfew import engines
from fedfew.bench import memory, timed_engine
from fedfew.bench.measure import measure
from fedfew.bench.tables import COLUMNS, figures, heading, legend
from fedfew.bench.timed_engine import ORACLE, TimedEngine, Variant, precisions, variants
from fedfew.bench.workloads import find
from fedfew.stack import from_named, named_leaves, take
from tests.bench.test_history import WAY

CPU = torch.device("cpu")
TINY = find("digits-mlp", "cpu", clients=3, models=2, samples=12)


@pytest.fixture
def no_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "of_a_process", lambda workload, variant: 123)


@pytest.mark.slow
@pytest.mark.usefixtures("no_second_process")
def test_figures_fit_together() -> None:
    told: list[str] = []
    result = measure(TINY, [ORACLE, Variant("stacked")], CPU, 2, told.append)
    oracle, stacked = result["variants"]
    assert (oracle["engine"], stacked["engine"]) == ("sequential", "stacked")
    assert oracle["times_the_oracle"] == 1
    assert stacked["times_the_oracle"] == pytest.approx(oracle["seconds"] / stacked["seconds"])
    assert len(stacked["all_seconds"]) == 2
    assert result["tflop_per_round"] == pytest.approx(3 * 2 * (64 * 64 + 640) * 36 * 2 * 1e-12)
    assert stacked["tflops"] == pytest.approx(result["tflop_per_round"] / stacked["seconds"])
    assert stacked["share_of_peak"] == pytest.approx(stacked["tflops"] / stacked["peak_tflops"])
    assert stacked["peak_bytes"] == 123
    assert oracle["difference"] == 0
    assert stacked["difference"] < 1e-4
    assert any("repeat 2 of 2" in line for line in told)


@pytest.mark.slow
@pytest.mark.usefixtures("no_second_process")
def test_repeats_are_chosen_where_none_are_given() -> None:
    result = measure(TINY, [ORACLE], CPU, None, lambda text: None)
    assert 3 <= len(result["variants"][0]["all_seconds"]) <= 9


@pytest.mark.slow
@pytest.mark.usefixtures("no_second_process")
def test_a_way_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise engines.UnsupportedModuleError("cannot take this")

    monkeypatch.setattr(engines.Stacked, "_train", refuse)
    oracle, stacked = measure(TINY, [ORACLE, Variant("stacked")], CPU, 1, lambda text: None)["variants"]
    assert stacked["error"] == "cannot take this"
    assert "seconds" not in stacked
    assert oracle["seconds"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_second_process")
def test_an_oracle_that_would_take_too_long_trains_some_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    original = engines.Sequential._train
    monkeypatch.setattr(
        engines.Sequential, "_train", lambda self, *a: trained.append(len(a[0].samples.count)) or original(self, *a)
    )
    monkeypatch.setattr("fedfew.bench.measure.LONGEST", 0.0)
    unequal = dataclasses.replace(TINY, alpha=0.5)
    oracle, stacked = measure(unequal, [ORACLE, Variant("stacked")], CPU, 1, lambda text: None)["variants"]
    assert set(trained) == {1}
    assert (oracle["clients_trained"], stacked["clients_trained"]) == (1, 3)
    assert 0 < stacked["difference"] < 1e-4  # of the one that both have trained
    assert figures(oracle, unequal.describe())[0].startswith("≈ ")
    assert not figures(stacked, unequal.describe())[0].startswith("≈")
    assert "≈" in legend([{"clients": 3, "variants": [stacked]}, {"clients": 3, "variants": [oracle]}])
    assert "≈" not in legend([{"clients": 3, "variants": [stacked]}])


def test_seconds_are_reckoned_by_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    one = TimedEngine(dataclasses.replace(TINY, alpha=0.5), TINY.draw(), ORACLE)
    clock = iter([10.0, 12.0, 20.0, 23.0, 30.0, 36.0])
    monkeypatch.setattr(timed_engine.time, "perf_counter", lambda: next(clock))
    assert (one.share, one.seconds()) == (1, 2)
    one.clients = 1  # twelve samples of thirty-six
    assert one.seconds() == pytest.approx(9)
    one.clients = 3
    one.fit_into(15)  # the first takes six seconds, so all would take eighteen
    assert one.clients == 2


def test_a_wrong_result_shows() -> None:
    one = TimedEngine(TINY, TINY.draw(), ORACLE)
    right = one.round(keep=True)
    assert one.difference(right, right) == 0
    initial = TINY.module().state_dict()
    half_way = {name: t.lerp(initial[name].expand(t.shape), 0.5) if name == "1.bias" else t for name, t in named_leaves(right)}
    assert one.difference(from_named(half_way), right) == pytest.approx(0.5, rel=1e-4)


def test_distances_are_over_all_clients_and_models() -> None:
    stack = torch.tensor([[[3.0, 0.0]], [[0.0, 4.0]]])  # two clients, a model each
    assert timed_engine._distance(stack, torch.zeros(2, 1, 2)) == 5.0
    assert (
        timed_engine._distance(stack, torch.tensor([[[3.0, 0.0]]])) == 5.0
    )  # one model for all: only the second is off, by (−3, 4)


def test_clients_in_chunks_train_as_all_at_once() -> None:
    one = TimedEngine(TINY, TINY.draw(), Variant("stacked"))
    together = one.round(keep=True)
    one.chunk = 2
    assert one.difference(one.round(keep=True), together) < 1e-4
    assert len(take(together, slice(None))["1.bias"]) == 3


def test_timed_rounds_follow_each_other_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same round again and again a stack would draw sixteen orders ahead each time, and use one."""
    one, rounds = TimedEngine(TINY, TINY.draw(), Variant("stacked")), []
    train = one._engine.train
    monkeypatch.setattr(one._engine, "train", lambda work: rounds.append(work.round) or train(work))
    for _ in range(3):
        one.seconds()
    one.round(keep=True)  # what engines are compared by is the same round of each
    assert rounds == [1, 2, 3, 0]


def test_a_cpu_has_fp32_alone() -> None:
    assert precisions(CPU) == ("fp32",)
    assert variants(CPU, None, None)[0] == ORACLE
    assert variants(CPU, "stacked", None) == [ORACLE, Variant("stacked")]
    with pytest.raises(ValueError, match="precision must be fp32 on this device, not 'bf16'"):
        variants(CPU, None, "bf16")
    with pytest.raises(ValueError, match="did you mean 'stacked'"):
        variants(CPU, "stackd", None)


def test_precisions_are_offered_once_the_engines_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    training = dataclasses.make_dataclass(
        "LocalTraining", [("precision", str, "fp32")], bases=(engines.LocalTraining,), frozen=True
    )
    monkeypatch.setattr(timed_engine, "get_args", lambda _: ("fp32", "bf16"))
    monkeypatch.setattr(timed_engine, "LocalTraining", training)
    assert precisions(cuda) == ("fp32", "bf16")
    assert variants(cuda, "stacked", None) == [ORACLE, Variant("stacked"), Variant("stacked", "bf16")]


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own() -> None:
    small = memory.of_a_process(TINY, ORACLE)
    assert small is not None
    assert small > 50 * 2**20  # torch alone takes more
    assert memory.of_a_process(TINY, Variant("nonsense")) is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_second_process")
def test_every_local_epoch_is_trained_and_counted() -> None:
    once, thrice = (
        TimedEngine(TINY, TINY.draw(), ORACLE),
        TimedEngine(dataclasses.replace(TINY, local_epochs=3), TINY.draw(), ORACLE),
    )
    assert thrice.difference(thrice.round(keep=True), once.round(keep=True)) > 0.5  # three epochs lead further than one
    result = measure(dataclasses.replace(TINY, local_epochs=3), [ORACLE], CPU, 1, lambda text: None)
    assert result["tflop_per_round"] == pytest.approx(3 * 3 * 2 * (64 * 64 + 640) * 36 * 2 * 1e-12)
    assert heading(result).endswith("batch 10, 3 local epochs, 0.0284 MFLOP per sample")
    variant = WAY | {"seconds": 0.5}
    assert figures(variant, result)[COLUMNS.index("samples/s")] == "432"  # 36 samples × 2 models × 3 epochs in half a second


def test_what_others_have_published_stands_beside() -> None:
    theirs = find("blazefl-cnn", "cuda")
    assert (theirs.clients, theirs.samples, theirs.local_epochs, theirs.models) == (100, 500, 5, 1)
    assert "blazefl-cnn: BlazeFL's authors report about 42,000 images/s" in legend([theirs.describe() | {"variants": []}])
    assert "BlazeFL" not in legend([TINY.describe() | {"variants": []}])
