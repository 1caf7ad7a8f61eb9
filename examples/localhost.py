"""Flower's programs on one machine, for the demonstration, benchmarks and tests: started, watched, and all ended at the end.

    with Deployment(folder) as here:                # or Deployment(folder, simulation=True)
        here.node(0, 'client=0 data="digits" clients=4')
        output = here.run(app_folder, {"rounds": 2})

Flower's programs start further ones, some in sessions of their own. All inherit environment variables, by which they are found
and ended, whatever happened before.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

FOLDER, PROGRAM = "FEDFEW_LOCALHOST", "FEDFEW_PROGRAM"  # environment: the folder and program that a process belongs to
QUIET = {  # no telemetry, no downloads
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class ProgramError(RuntimeError):
    """A program did not do what it should."""


class Program:
    """A program whose output goes to a file, and everything that it starts."""

    def __init__(self, name: str, folder: Path, words: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                words,
                env={**environment, FOLDER: str(folder), PROGRAM: name},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others in order
            )

    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """Kill it and everything it has started, at once, as a power cut would."""
        self.crash()
        _kill_all(lambda: processes_of(self.folder, self.name))

    def crash(self) -> None:
        """Kill this one process alone."""
        self.popen.kill()
        self.popen.wait()

    def end(self, patience: float = 5) -> None:
        """Ask it to end; after ``patience`` seconds kill it and everything it has started."""
        self.popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        self.kill()


class Localhost:
    """Programs that belong together; leaving the ``with`` block ends them and everything they have started."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, patience: float = 8) -> None:
        self.folder = folder
        self.patience = patience  # seconds that programs have to end by themselves
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "flwr"), "PATH": path, **(environment or {})}
        self.programs: dict[str, Program] = {}
        (folder / "flwr").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Localhost:
        self._before = signal.signal(signal.SIGTERM, _exit)  # SIGTERM cleans up as Ctrl-C does
        return self

    def __exit__(self, *_: object) -> None:
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave some of them running
        try:
            self.end()
        finally:
            signal.signal(signal.SIGINT, ignored)
            signal.signal(signal.SIGTERM, self._before)

    def start(self, name: str, *words: str, environment: Mapping[str, str] | None = None) -> Program:
        """Start a program; its output goes to NAME.log in the folder."""
        self.programs[name] = Program(name, self.folder, words, {**self.environment, **(environment or {})})
        return self.programs[name]

    def call(self, *words: str, seconds: float = 900, environment: Mapping[str, str] | None = None) -> str:
        """Run a program to its end, and return what it printed."""
        variables = {**self.environment, **(environment or {})}
        done = subprocess.run(words, env=variables, cwd=self.folder, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode:
            raise ProgramError(f"'{' '.join(words)}' ended with code {done.returncode}: {(done.stdout + done.stderr).strip()}")
        return done.stdout

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 300, alive: tuple[str, ...] = ()) -> None:
        """Wait until a condition holds; an error after so many seconds, or when one of the programs ``alive`` has ended."""
        end = time.monotonic() + seconds
        while not condition():
            for name in alive:
                if not self.programs[name].running():
                    code, words = self.programs[name].popen.returncode, self.programs[name].text().split()[-60:]
                    raise ProgramError(f"{name} ended with code {code} while waiting for {what}: {' '.join(words)}")
            if time.monotonic() > end:
                raise ProgramError(f"waited {seconds:.0f} seconds for {what}; the logs are in {self.folder}")
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        self.programs.pop(name).kill()

    def end(self) -> None:
        """Ask all programs to end, then kill whatever is left of them."""
        for program in self.programs.values():
            program.popen.terminate()
        deadline = time.monotonic() + self.patience
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        _kill_all(self.alive)
        for program in self.programs.values():
            program.popen.wait()
        self.programs.clear()

    def alive(self) -> list[int]:
        """Processes started here, and everything that they have started."""
        return [p.popen.pid for p in self.programs.values() if p.running()] + processes_of(self.folder)


class Deployment(Localhost):
    """A SuperLink on a free port without TLS, SuperNodes, and runs of apps."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, *, simulation: bool = False) -> None:
        super().__init__(folder, {"FEDFEW_SITES": str(folder / "sites"), **(environment or {})})
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._mode = ["--simulation"] if simulation else []
        self._runs = 0
        connection = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'
        (folder / "flwr" / "config.toml").write_text(connection)

    def __enter__(self) -> Deployment:
        super().__enter__()
        try:
            self.start_superlink()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_superlink(self) -> Program:
        """Start the SuperLink and wait until it answers; started again after it was killed it has the same port."""
        words = ("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port), *self._mode)
        superlink = self.start("superlink", *words)
        self.wait_for(lambda: listening(self.port), "the SuperLink", alive=("superlink",))
        return superlink

    @property
    def superlink(self) -> Program:
        return self.programs["superlink"]

    def node(self, name: str | int, config: str) -> Program:
        """A SuperNode with this --node-config."""
        words = ("flower-supernode", "--insecure", "--superlink", self.address, "--port", str(free_port()))
        return self.start(f"node-{name}", *words, "--node-config", config)

    def start_run(self, app: Path, config: Mapping[str, object] | None = None, nodes: int | None = None) -> Program:
        """``flwr run --stream`` of an app with these changes to its configuration; it ends when the run does."""
        self._runs += 1
        words = ["flwr", "run", str(app), "here", "--stream"]
        if config:
            words += ["--run-config", " ".join(f"{key}={_toml(value)}" for key, value in config.items())]
        if nodes is not None:
            words += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
        return self.start(f"run-{self._runs}", *words)

    def run(self, app: Path, config: Mapping[str, object] | None = None, nodes: int | None = None, seconds: float = 900) -> str:
        """The same, to its end; its output."""
        program = self.start_run(app, config, nodes)
        self.wait_for(lambda: not program.running(), f"the end of {program.name}", seconds)
        return program.text()


def processes_of(folder: Path, program: str | None = None) -> list[int]:
    """Processes with this folder, and this program if given, in their environment (where there is /proc; elsewhere none)."""
    wanted = {f"{FOLDER}={folder}".encode()} | ({f"{PROGRAM}={program}".encode()} if program else set())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = set((entry / "environ").read_bytes().split(b"\0"))
            zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:  # gone, or another user's
            continue
        if wanted <= variables and not zombie and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def free_port() -> int:
    """A port on which nothing listens now. Systems give ports from 32768 up to whoever asks for any: these are below."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _kill_all(alive: Callable[[], list[int]]) -> None:
    while left := alive():  # one may start another while we look
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
