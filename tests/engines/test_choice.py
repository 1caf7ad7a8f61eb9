"""The engine by name, and ``auto``: the fastest of a short trial."""

import random

import pytest
from torch import nn

from fedfew.engines import LocalTraining, Sequential, Stacked, Threaded, UnsupportedModuleError, choice, make
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
    assert trials == [*[("sequential", 1)] * 2, *WORK, *TURN * choice.TURNS]
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


def test_a_trial_of_long_steps_is_kept_short(monkeypatch):
    trials = []

    def seconds(engine, samples, models, clients):
        trials.append((engine.name, clients))
        return {"sequential": 9.0, "threaded": 16.0, "stacked": 19.0}[engine.name]

    monkeypatch.setattr(choice, "_seconds", seconds)
    monkeypatch.setattr(choice, "_fastest", {})
    engine = make("auto", linear(), LocalTraining(lr=0.1, batch_size=4), 0, FEDERATION.train, 3)
    assert engine.name == "threaded", "16 s against twice 9"
    assert trials == [*[("sequential", 1)] * 2, *[("stacked", 2), ("threaded", 2)] * 2]


def test_a_trial_takes_time():
    for cls in ENGINES:
        engine = cls(linear(), LocalTraining(lr=0.1, batch_size=4), 0)
        assert choice._seconds(engine, FEDERATION.train, models=2, clients=3) > 0


def test_unknown_engine():
    with pytest.raises(ValueError, match="engine must be auto, stacked, threaded or sequential"):
        make("turbo", linear(), LocalTraining(lr=0.1, batch_size=4), 0, FEDERATION.train, 3)


def test_times_are_in_ordinary_units():
    assert [choice._time(seconds) for seconds in (0.00246, 0.9994, 1.81)] == ["2.46 ms", "999 ms", "1.81 s"]
