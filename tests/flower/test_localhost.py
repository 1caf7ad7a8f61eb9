"""Programs on this machine, none of which is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from examples.localhost import FOLDER, Localhost, ProgramError, processes_of

ROOT = Path(__file__).parents[2]
# A program that ignores SIGTERM and starts another in a session of its own, as Flower's programs do.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print("started", flush=True)
time.sleep(3600)
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")


def stubborn(here: Localhost, name: str = "stubborn") -> None:
    here.start(name, sys.executable, "-c", STUBBORN)
    here.wait_for(lambda: "started" in here.programs[name].text(), "it", alive=(name,))
    here.wait_for(lambda: len(processes_of(here.folder, name)) == 2, "both", alive=(name,))


def test_all_that_was_started_is_ended(tmp_path: Path) -> None:
    with Localhost(tmp_path, patience=0.2) as here:
        stubborn(here)
        assert len(processes_of(tmp_path)) == 2
        here.end()
        assert here.alive() == processes_of(tmp_path) == []


def test_also_after_an_error(tmp_path: Path) -> None:
    def fails() -> None:
        with Localhost(tmp_path, patience=0.2) as here:
            stubborn(here)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_power_cut_takes_one_program_with_its_children_and_no_other(tmp_path: Path) -> None:
    with Localhost(tmp_path, patience=0.2) as here:
        stubborn(here, "one")
        stubborn(here, "other")
        here.kill("one")
        assert processes_of(tmp_path, "one") == []
        assert len(processes_of(tmp_path, "other")) == 2


def test_what_programs_print_and_how_they_fail(tmp_path: Path) -> None:
    with Localhost(tmp_path, {"WORD": "hello"}) as here:
        assert here.call(sys.executable, "-c", "import os; print(os.environ['WORD'])") == "hello\n"
        with pytest.raises(ProgramError, match=r"ended with code 3: no such luck"):
            here.call(sys.executable, "-c", "print('no such luck'); raise SystemExit(3)")
        here.start("short", sys.executable, "-c", "print('last words'); raise SystemExit(4)")
        with pytest.raises(ProgramError, match="short ended with code 4 while waiting for ever: last words"):
            here.wait_for(lambda: False, "ever", alive=("short",))
        with pytest.raises(ProgramError, match="waited 0 seconds for Godot"):
            here.wait_for(lambda: False, "Godot", seconds=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_from_outside_it_ends_the_others_first(tmp_path: Path, number: int) -> None:
    script = f"""
import sys, time
from pathlib import Path
from examples.localhost import Localhost
with Localhost(Path({str(tmp_path)!r}), patience=0.2) as here:
    here.start("x", sys.executable, "-c", {STUBBORN!r})
    here.wait_for(lambda: "started" in here.programs["x"].text(), "it")
    print("ready", flush=True)
    time.sleep(3600)
"""
    outer = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    assert outer.stdout is not None
    assert outer.stdout.readline() == "ready\n"
    assert len(processes_of(tmp_path)) == 2
    outer.send_signal(number)
    outer.wait(600)
    assert outer.returncode != 0
    assert processes_of(tmp_path) == []


def test_a_process_does_not_count_itself(tmp_path: Path) -> None:
    look = f"from pathlib import Path; from examples.localhost import processes_of; print(processes_of(Path({str(tmp_path)!r})))"
    program = [sys.executable, "-c", look]
    done = subprocess.run(program, env=os.environ | {FOLDER: str(tmp_path)}, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
