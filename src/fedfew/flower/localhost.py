"""Flower's programs on this one machine, for the demonstration and for tests: started, watched, and all gone at the end.

Flower's programs start further ones, some of them in sessions of their own. All inherit the environment, and with it the mark by
which they are found and ended, whatever happened before.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

MARK, PROGRAM = "FEDFEW_LOCALHOST", "FEDFEW_PROGRAM"  # environment: the folder and the program that a process belongs to
QUIET = {  # nothing is told to or fetched from anybody
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class ProgramError(RuntimeError):
    """One of Flower's programs did not do what it should."""


class Localhost:
    """Programs that belong together; leaving the ``with`` block ends them and all they have started."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, patience: float = 8) -> None:
        self.folder = folder
        self.patience = patience  # seconds that programs have to end by themselves
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "flwr"), "PATH": path, "PYTHONUNBUFFERED": "1"}
        self.environment |= {MARK: str(folder), **(environment or {})}
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "flwr").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Localhost:
        self._before = signal.signal(signal.SIGTERM, _leave)  # an end by SIGTERM cleans up as Ctrl-C does
        return self

    def __exit__(self, *_: object) -> None:
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of them behind
        try:
            self.end()
        finally:
            signal.signal(signal.SIGINT, ignored)
            signal.signal(signal.SIGTERM, self._before)

    def start(self, name: str, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program; what it says goes to NAME.log in the folder."""
        with self.log(name).open("ab") as log:
            self.programs[name] = subprocess.Popen(
                words,
                env={**self.environment, PROGRAM: name, **(environment or {})},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us alone: we end them in order
            )
        return self.programs[name]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def call(self, *words: str, seconds: float = 300, environment: Mapping[str, str] | None = None) -> str:
        """Run a program to its end, and return what it printed."""
        variables = {**self.environment, **(environment or {})}
        done = subprocess.run(words, env=variables, cwd=self.folder, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode:
            raise ProgramError(f"'{' '.join(words)}' ended with code {done.returncode}: {(done.stdout + done.stderr).strip()}")
        return done.stdout

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 90, alive: tuple[str, ...] = ()) -> None:
        """Wait until something is so, as long as these programs live."""
        end = time.monotonic() + seconds
        while not condition():
            for name in alive:
                if (code := self.programs[name].poll()) is not None:
                    raise ProgramError(f"{name} ended with code {code} while waiting for {what}: {self._last_words(name)}")
            if time.monotonic() > end:
                raise ProgramError(f"waited {seconds:.0f} seconds for {what}; the logs are in {self.folder}")
            time.sleep(0.3)

    def kill(self, name: str) -> None:
        """Kill a program and all it has started, at once, as a power cut would."""
        program = self.programs.pop(name)
        program.kill()
        program.wait()
        _kill_all(lambda: marked(self.folder, name))

    def end(self) -> None:
        """End all programs, gently at first, then all that bears the mark."""
        for program in self.programs.values():
            program.terminate()
        deadline = time.monotonic() + self.patience
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        _kill_all(self.alive)
        for program in self.programs.values():
            program.wait()
        self.programs.clear()

    def alive(self) -> list[int]:
        """Processes that belong to this federation: those started here, and all that bear its mark."""
        for program in self.programs.values():
            program.poll()  # one that has ended is not to be seen as a zombie
        return [program.pid for program in self.programs.values() if program.returncode is None] + marked(self.folder)

    def _last_words(self, name: str) -> str:
        return " ".join(self.log(name).read_text(errors="replace").split()[-60:])


def marked(folder: Path, program: str | None = None) -> list[int]:
    """Processes with this folder's mark in their environment, or this program's (where there is /proc; elsewhere none)."""
    wanted = {f"{MARK}={folder}".encode()} | ({f"{PROGRAM}={program}".encode()} if program else set())
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = set(entry.read_bytes().split(b"\0"))
        except OSError:  # gone, or another user's
            continue
        if wanted <= variables and int(entry.parent.name) != os.getpid():
            found.append(int(entry.parent.name))
    return found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _kill_all(alive: Callable[[], list[int]]) -> None:
    while left := alive():  # one may start another while we look
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
