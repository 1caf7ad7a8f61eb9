"""The engine by name, and ``auto``: the fastest of a short trial."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfew.engines import LocalTraining, Sequential, Stacked, Threaded, UnsupportedModuleError, choice, make
from fedfew.engines.stacked.differentiation import Differentiation
from tests.engines.small import ENGINES, FEDERATION, run
from tests.helpers import linear


class Branching(nn.Module):
    """Looks at values to decide what to do: vmap cannot."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else -self.linear(x)


def test_a_module_that_vmap_cannot_take():
    with pytest.raises(UnsupportedModuleError, match=r"cannot take Branching.*engine='sequential'"):
        run(Stacked, Branching)
    run(Sequential, Branching)
    engine = make("auto", Branching(), LocalTraining(lr=0.1, batch_size=8), 0, FEDERATION.train, 2)
    assert engine.name in ("sequential", "threaded")


WORK = (("stacked", 4), ("threaded", 4))  # recorded first, then timed
TURN = (*WORK, ("sequential", 4))


@pytest.mark.parametrize(
    ("stack", "threads", "fastest"),
    [
        (0.003, 0.004, Stacked),
        (0.0055, 0.0055, Sequential),
        (0.003, 0.002, Threaded),
        (0.002, 0.0022, Threaded),  # about as fast: always the same
        (0.0049, 0.0058, Stacked),
    ],
)
def test_auto_takes_the_fastest_once_for_each_kind_of_work(stack, threads, fastest, monkeypatch):
    """Seconds of four clients are given, so that the trial's length, not this machine, decides: 0.0045 one after the other."""
    trials = []

    def seconds(engine, samples, models, clients):
        trials.append((engine.name, clients))
        of_four = {"sequential": 0.0045, "stacked": stack, "threaded": threads}[engine.name]
        return of_four if clients == 4 else 0.0001  # alone a client is faster, which must not count

    monkeypatch.setattr(choice, "_seconds", seconds)
    monkeypatch.setattr(choice, "_fastest", {})

    def auto(models=3, batch_size=4, lr=0.1):
        return type(make("auto", linear(), LocalTraining(lr=lr, batch_size=batch_size), 0, FEDERATION.train, models))

    assert auto() is fastest
    assert trials == [*[("sequential", 1)] * 4, *WORK, *TURN * choice.TURNS]  # one model, then all three
    number = len(trials)
    assert auto(lr=0.2) is fastest
    assert len(trials) == number, "the same work is not tried again"
    for other in ({"models": 2}, {"batch_size": 5}):
        assert auto(**other) is fastest
    assert len(trials) == 3 * number


def test_six_of_six_trials_take_the_same_engine_on_a_busy_machine(monkeypatch):
    """A third of all times are up to three times as long as they would be. The stack is 1.3 times as fast as threads."""
    chance = random.Random(0)

    def seconds(engine, samples, models, clients):
        alone = {"sequential": 0.005, "stacked": 0.003, "threaded": 0.004}[engine.name] * clients / 4
        return alone * (chance.uniform(1, 3) if chance.random() < 1 / 3 else chance.uniform(1, 1.02))

    monkeypatch.setattr(choice, "_seconds", seconds)
    names = set()
    for _ in range(6):
        monkeypatch.setattr(choice, "_fastest", {})
        names.add(make("auto", linear(), LocalTraining(lr=0.1, batch_size=4), 0, FEDERATION.train, 3).name)
    assert names == {"stacked"}


def auto_in(monkeypatch, seconds, models=3, samples=FEDERATION.train):
    """The engine that ``auto`` takes, and what was tried, where ``seconds(name, models, clients)`` of each are given."""
    trials = []

    def timed(engine, samples, models, clients):
        trials.append((engine.name, models, clients))
        return seconds(engine.name, models, clients)

    monkeypatch.setattr(choice, "_seconds", timed)
    monkeypatch.setattr(choice, "_fastest", {})
    return make("auto", linear(), LocalTraining(lr=0.1, batch_size=4), 0, samples, models), trials


@pytest.mark.parametrize(
    ("threaded", "fastest", "turns"),
    [
        ([30.0, 16.0], "threaded", 2),  # the first pass starts the threads and does not count: 16 s against twice 9
        ([30.0, 29.0], "sequential", 2),
        ([54.1, 1.0], "sequential", 1),  # more than three times as long: it gets no second pass
    ],
)
def test_long_steps_are_tried_with_one_model_and_without_a_stack(threaded, fastest, turns, monkeypatch):
    monkeypatch.setattr(choice.torch, "get_num_threads", lambda: 2)
    passes = iter(threaded)
    engine, trials = auto_in(monkeypatch, lambda name, models, clients: 9.0 if name == "sequential" else next(passes))
    assert engine.name == fastest
    assert trials == [*[("sequential", 1, 1)] * 2, *[("threaded", 1, 2)] * turns]
    assert engine.why.endswith("; a stack, which cannot shorten steps this long, was not tried")


def test_long_steps_on_one_core_need_no_trial(monkeypatch):
    monkeypatch.setattr(choice.torch, "get_num_threads", lambda: 1)
    engine, trials = auto_in(monkeypatch, lambda *_: 9.0)
    assert trials == [("sequential", 1, 1)] * 2
    assert engine.why == "two steps of a client take 9 s, and on one core other engines cannot shorten them"
    assert engine.name == "sequential"


def test_on_one_core_threads_are_tried_for_images(monkeypatch):
    """They lay them out channels last."""
    monkeypatch.setattr(choice.torch, "get_num_threads", lambda: 1)
    images = replace(FEDERATION.train, x=torch.zeros(len(FEDERATION.train.x), 1, 5, 1))
    engine, trials = auto_in(monkeypatch, lambda name, models, clients: 9.0 if name == "sequential" else 14.0, samples=images)
    assert engine.name == "threaded"
    assert trials == [*[("sequential", 1, 1)] * 2, *[("threaded", 1, 2)] * 2]


def test_many_models_are_tried_as_one_where_together_they_take_long(monkeypatch):
    """0.15 s for one model and 0.45 s for three: a stack is tried, of two clients with a model each."""
    engine, trials = auto_in(monkeypatch, lambda name, models, clients: {"stacked": 0.06}.get(name, 0.15) * models * clients)
    assert engine.name == "stacked"
    assert {(name, models, clients) for name, models, clients in trials} == {
        ("sequential", 1, 1),
        ("stacked", 1, 2),
        ("threaded", 1, 2),
    }


def test_a_trial_takes_time():
    for cls in ENGINES:
        engine = cls(linear(), LocalTraining(lr=0.1, batch_size=4), 0)
        assert choice._seconds(engine, FEDERATION.train, models=2, clients=3) > 0


def test_unknown_engine():
    with pytest.raises(ValueError, match="engine must be auto, stacked, threaded or sequential"):
        make("turbo", linear(), LocalTraining(lr=0.1, batch_size=4), 0, FEDERATION.train, 3)


def test_times_are_in_ordinary_units():
    assert [choice._time(seconds) for seconds in (0.00246, 0.9994, 1.81)] == ["2.46 ms", "999 ms", "1.81 s"]


def sure_stack(monkeypatch, seconds):
    """Of two models, where a step has ten operations, each of which takes 10 μs to start."""
    monkeypatch.setattr(choice, "_seconds", lambda *_: seconds)
    monkeypatch.setattr(choice, "_starting", lambda device: 1e-5)
    monkeypatch.setattr(Differentiation, "operations", 10)
    return choice._sure_stack(linear(), LocalTraining(lr=0.1, batch_size=8), 0, FEDERATION.train, 2)


def test_a_stack_is_sure_to_be_the_fastest_where_starting_the_operations_of_others_takes_longer(monkeypatch):
    steps = sum(2 if size > 8 else 1 for size in FEDERATION.train.count.tolist())
    least = steps * 2 * 10 * 1e-5
    stack = sure_stack(monkeypatch, 0.99 * least)
    assert isinstance(stack, Stacked)
    assert "so no other engine was tried" in stack.why
    assert sure_stack(monkeypatch, 1.01 * least) is None


def test_a_module_that_vmap_cannot_take_is_not():
    assert choice._sure_stack(Branching(), LocalTraining(lr=0.1, batch_size=8), 0, FEDERATION.train, 2) is None


def test_auto_takes_another_engine_where_a_stack_cannot_even_be_made(monkeypatch):
    monkeypatch.setattr(choice, "_least_of_two", lambda *_, **__: 0.001)  # however busy this machine is
    monkeypatch.setattr(choice, "_fastest", {})
    module, training = nn.Sequential(nn.Linear(5, 3), nn.SyncBatchNorm(3)), LocalTraining(lr=0.1, batch_size=8)
    engine = make("auto", module, training, 0, FEDERATION.train, 2)
    assert engine.name != "stacked"
    assert "the stacked engine cannot take SyncBatchNorm (1), only nn.BatchNorm1d" in engine.why
    assert choice._sure_stack(module, training, 0, FEDERATION.train, 2) is None


def test_what_starting_takes_is_the_least_of_some_measurements_by_operations_and_gradients(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0, 30.0, 36.0, 40.0, 47.0])
    monkeypatch.setattr(choice.time, "perf_counter", lambda: next(clock))
    assert choice._starting(torch.device("cpu")) == 2 / 200


def test_on_a_gpu_a_sure_stack_is_taken_as_it_was_tried_and_another_like_it_the_next_time(monkeypatch):
    stack = Stacked(linear(), LocalTraining(lr=0.1, batch_size=8), 0)
    stack.why = "because"
    monkeypatch.setattr(choice, "_on_gpu", lambda samples: True)
    monkeypatch.setattr(choice, "_sure_stack", lambda *_: stack)
    monkeypatch.setattr(choice, "_fastest", {})
    first, second = (make("auto", linear(), LocalTraining(lr=0.1, batch_size=8), 0, FEDERATION.train, 2) for _ in range(2))
    assert first is stack
    assert second is not stack
    assert (second.name, second.why) == ("stacked", "because")
