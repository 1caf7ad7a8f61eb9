"""A Ctrl-C that waits."""

import signal
import threading

import pytest
import torch

from fedfew.engines.stacked.traced import recorded
from fedfew.util.interrupts import held_back, holdable


def test_it_waits_until_the_end():
    done = []

    def work():
        with held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("what was begun")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["what was begun"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_then_does_what_it_would_have_done():
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            assert told == []
        assert told == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with held_back():
            signal.raise_signal(signal.SIGINT)  # ignored before, ignored now
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_within_goes_first():
    def work():
        with held_back():
            signal.raise_signal(signal.SIGINT)
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_have_no_ctrl_c():
    seen = []

    def work():
        with held_back():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_recording_is_finished_first():
    steps = []

    def function(x):
        signal.raise_signal(signal.SIGINT)
        steps.append("interrupted")
        return x + 1

    with pytest.raises(KeyboardInterrupt):
        recorded(function, (torch.ones(2),))
    assert steps == ["interrupted"]


def test_within_one_handler_any_number_of_works_waits():
    done = []

    def work(holdable_now):
        for number in range(3):
            with holdable_now():
                done.append(number)
                if number == 1:
                    signal.raise_signal(signal.SIGINT)
                    signal.raise_signal(signal.SIGINT)  # impatient: still one Ctrl-C
                    done.append("what was begun")

    with holdable() as held:
        with pytest.raises(KeyboardInterrupt):
            work(held)
        assert done == [0, 1, "what was begun"]
        with held():  # the one before is over
            pass
        with pytest.raises(KeyboardInterrupt):  # nothing is held now
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
