"""Threads that take turns: who is served with whom, what an error does, and how seconds are divided."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from fedfew.engines.packed import members
from fedfew.engines.packed.members import BEFORE, TRAINING, Pack, current

SERVED: list[list[object]] = []
CLOCK = SimpleNamespace(now=0.0)


@dataclass(frozen=True, eq=False)
class Ask:
    """Answered by twice its value; 13 cannot be answered."""

    value: int
    kind: str = "a"
    stage: int = TRAINING
    seconds: float = 0.0

    def work(self) -> int:
        return self.value

    def together(self, requests):
        SERVED.append([r.value for r in requests])
        CLOCK.now += self.seconds
        if any(r.value == 13 for r in requests):
            raise ValueError("unlucky")
        return [2 * r.value for r in requests]


@pytest.fixture(autouse=True)
def nothing_served():
    SERVED.clear()


def asking(*requests: Ask, rounds=None):
    def task():
        answers = []
        for number, request in enumerate(requests):
            current().begin_round((rounds or range(len(requests)))[number])
            answers.append(current().ask(request))
        return answers

    return task


def test_requests_of_one_kind_are_fulfilled_together():
    found = Pack().run([asking(Ask(1), Ask(2)), asking(Ask(3), Ask(4)), asking(Ask(5, "b"), Ask(6))])
    assert found == [[2, 4], [6, 8], [10, 12]]
    assert SERVED == [[1, 3], [5], [2, 4, 6]]
    assert current() is None


def test_a_run_that_ends_early_leaves_the_pack():
    assert Pack().run([asking(Ask(1)), asking(Ask(3), Ask(4)), lambda: "nothing to ask"]) == [[2], [6, 8], "nothing to ask"]
    assert SERVED == [[1, 3], [4]]


def test_an_error_belongs_to_the_run_that_causes_it():
    first, second, third = Pack().run([asking(Ask(1), Ask(2)), asking(Ask(13)), asking(Ask(5), Ask(6))])
    assert (first, third) == ([2, 4], [10, 12])
    assert isinstance(second, ValueError)
    assert SERVED == [[1, 13, 5], [1], [13], [5], [2, 6]]


def test_runs_with_more_to_do_in_a_round_meet_the_others_in_the_next():
    long = asking(Ask(1, stage=BEFORE), Ask(2), Ask(3), Ask(4, stage=BEFORE), Ask(5), rounds=[1, 1, 1, 2, 2])
    short = asking(Ask(10), Ask(20), rounds=[1, 2])
    Pack().run([short, long])
    assert SERVED == [[1], [10, 2], [3], [4], [20, 5]]


def test_seconds_are_divided_by_work_and_waiting_is_free(monkeypatch):
    """On a clock of our own."""
    monkeypatch.setattr(members, "time", SimpleNamespace(perf_counter=lambda: CLOCK.now))
    pack = Pack()

    def patient():
        before = current().clock()
        current().ask(Ask(1, seconds=0.2))
        return current().clock() - before

    def busy():
        before = current().clock()
        current().ask(Ask(3, seconds=0.2))
        CLOCK.now += 0.1
        return current().clock() - before

    first, second = pack.run([patient, busy])
    assert first == pytest.approx(0.05)  # 1/4 of 0.2
    assert second == pytest.approx(0.25)  # 3/4 of 0.2, and its own 0.1
    assert [member.largest for member in pack.members] == [2, 2]


@pytest.mark.parametrize("moment", ["at work", "waiting for a run"])
def test_ctrl_c_reaches_every_run_once(monkeypatch, moment):
    """What a run asks for while it writes its state down is still answered."""
    interrupted = []

    def interrupt(*given):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return original(*given)

    owner, name = (members, "_answers") if moment == "at work" else (members.Member, "wait")
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, interrupt)

    def run():
        try:
            current().ask(Ask(1))
        except KeyboardInterrupt:
            return "stopped", current().ask(Ask(5))
        return "not stopped"

    assert Pack().run([run, run]) == [("stopped", 10), ("stopped", 10)]
    assert SERVED == [[5, 5]]
