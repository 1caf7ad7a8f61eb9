"""Real processes: a SuperLink, SuperNodes and runs on loopback, each test with a FLWR_HOME of its own, none left behind.

with Deployment(tmp_path) as here:              # or Deployment(tmp_path, simulation=True)
    here.node(0, 'client=0 data="digits" clients=4')
    output = here.run(app_folder, {"rounds": 2})
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
APP, EXAMPLE = ROOT / "tests" / "flower" / "app", ROOT / "examples" / "flower"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PATH": f"{BIN}:{os.environ.get('PATH', '')}",  # Flower starts its own programs by name
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",  # where sites find the tests' data and model
}
MARK = "FEDFEW_TEST_PROCESS"


def config(client: int) -> str:
    """The --node-config of a client of the tests' app."""
    return f'client={client} data="tests.flower.small:make"'


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


class Process:
    """A program whose output goes to a file. All it starts (Flower detaches some of it) is known by a mark in its environment."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], cwd: Path) -> None:
        self.log = log
        self.mark = uuid.uuid4().hex
        with open(log, "ab") as file:
            marked = env | {MARK: self.mark}
            self.popen = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=marked, cwd=cwd, start_new_session=True
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def running(self) -> bool:
        return self.popen.poll() is None

    def kill(self) -> None:
        """SIGKILL to it and all it started, at once: a power cut."""
        while family := self.family():
            for pid in family:
                _signal(pid, signal.SIGKILL)
            self.popen.poll()
            time.sleep(0.05)
        self.popen.wait()

    def crash(self) -> None:
        """SIGKILL to itself alone."""
        self.popen.kill()
        self.popen.wait()

    def end(self) -> None:
        """Ask it to end, then make it."""
        if self.running():
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(5)
        self.kill()

    def family(self) -> list[int]:
        """Itself and all it started that still run."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0") and "Z" not in _state(entry):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Deployment:
    """A SuperLink on a free port and what is attached to it; everything is ended when the block is left."""

    def __init__(
        self, folder: Path, *, simulation: bool = False, superlink: list[str] | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.simulation = simulation
        self.port = free_port()
        self.arguments = superlink if superlink is not None else ["--insecure"]
        self.env = os.environ | QUIET | {"FEDFEW_SITES": str(folder / "sites")} | (env or {})
        self.processes: list[Process] = []
        self.link: Process | None = None
        self._runs = 0

    def __enter__(self) -> Deployment:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start_link()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            process.end()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_link(self) -> Process:
        """The SuperLink, ready; started again after it was killed it has the same port."""
        mode = ["--simulation"] if self.simulation else []
        command = [str(BIN / "flower-superlink"), *self.arguments, "--host", "127.0.0.1", "--port", str(self.port), *mode]
        self.link = self._start("superlink", command)
        wait_for(self._answers, 60, lambda: f"the SuperLink does not answer: {self.link and self.link.text()}")
        return self.link

    def node(self, name: str | int, config: str, *arguments: str) -> Process:
        """A SuperNode with this --node-config."""
        security = arguments or ("--insecure",)
        command = [str(BIN / "flower-supernode"), *security, "--superlink", self.address, "--port", str(free_port())]
        return self._start(f"node-{name}", [*command, "--node-config", config])

    def start_run(self, app: Path, config: dict[str, object] | None = None, nodes: int | None = None) -> Process:
        """``flwr run --stream`` of an app with these changes to its configuration; ends when the run does."""
        self._runs += 1
        name = f"run-{self._runs}"
        home = Path(self._env(name)["FLWR_HOME"])
        (home / "config.toml").write_text(self._connection())
        command = [str(BIN / "flwr"), "run", str(app), "here", "--stream"]
        if config:
            command += ["--run-config", " ".join(f"{key}={_toml(value)}" for key, value in config.items())]
        if nodes is not None:
            command += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
        return self._start(name, command)

    def run(self, app: Path, config: dict[str, object] | None = None, nodes: int | None = None, seconds: float = 300) -> str:
        """The same, to its end; its output."""
        process = self.start_run(app, config, nodes)
        wait_for(lambda: not process.running(), seconds, lambda: f"the run does not end: {process.text()[-4000:]}")
        return process.text()

    def _connection(self) -> str:
        return f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\ninsecure = true\n'

    def _answers(self) -> bool:
        assert self.link is not None
        assert self.link.running(), self.link.text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _env(self, name: str) -> dict[str, str]:
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return self.env | {"FLWR_HOME": str(home)}

    def _start(self, name: str, command: list[str]) -> Process:
        process = Process(command, self.folder / f"{name}.log", self._env(name), self.folder)
        self.processes.append(process)
        return process


def wait_for(true, seconds: float, otherwise) -> None:
    """Until ``true()`` is; after so many seconds an AssertionError with the text of ``otherwise()``."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.2)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
