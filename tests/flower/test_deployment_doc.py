"""The deployment guide, followed to the message: every command in it is run, every unit is started, in the order of the page.

Host names become loopback, /srv/fedfew a folder a machine, and a hundred rounds two. What would change this machine (sudo,
useradd, venv, pip) is played by small scripts; systemctl by this test, which starts what the unit says with the environment that
it says.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from examples.localhost import Localhost, free_port, listening, processes_of

import fedfew

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "deployment.md").read_text(encoding="utf-8")
SITES = {"north": 0, "south": 1}
PLAYED = {
    "sudo": 'while [ "${1#-}" != "$1" ]; do [ "$1" = -u ] && shift; shift; done\nexec "$@"',
    "useradd": 'while [ "$1" != --home-dir ]; do shift; done\nmkdir -p "$2"',
    "python3": '[ "$1 $2" = "-m venv" ] || exit 9\nmkdir -p "$3/bin" && cp -P "$PROGRAMS"/* "$3/bin/"',
    "pip": 'echo "$@" >> "$INSTALLED"',
    "fedfew": f'exec "{sys.executable}" -m fedfew "$@"',
}


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    at: str | None


def blocks() -> list[Block]:
    found = re.finditer(r"(?:<!-- at: ([^>]+) -->\n)?```(\w*)\n(.*?)\n```", PAGE, re.S)
    return [Block(match[2], match[3], match[1]) for match in found]


def unit(text: str) -> dict[str, list[str]]:
    """The settings of a unit's [Service] section."""
    settings: dict[str, list[str]] = {}
    for line in text.partition("[Service]")[2].partition("[Install]")[0].strip().splitlines():
        name, _, value = line.partition("=")
        settings.setdefault(name, []).append(value)
    return settings


UNITS = {re.search(r"system/(\S+)\.service", b.text)[1]: b.text for b in blocks() if b.language == "ini"}  # type: ignore[index]


# -- without starting anything -----------------------------------------------------------------------------------------------


def test_no_block_escapes_this_test() -> None:
    for block in blocks():
        assert block.language in ("sh", "ini", "toml"), block
        assert block.at in ("coordinator", "site", "new site", "coordinator, for every site"), block
    assert PAGE.count("```") == 2 * len(blocks())


@pytest.mark.slow
def test_commands_in_the_text_exist() -> None:
    spans = set(re.findall(r"`((?:flwr|fedfew) [a-z][^`]*)`", PAGE))
    assert "flwr stop RUN_ID" in spans
    for words in {tuple(span.split()[:2]) for span in spans}:
        program = [sys.executable, "-m", "fedfew"] if words[0] == "fedfew" else [str(Path(sys.executable).parent / "flwr")]
        assert subprocess.run([*program, words[1], "--help"], capture_output=True, check=False).returncode == 0, words


@pytest.mark.parametrize("name", UNITS)
def test_units_are_sound(name: str, tmp_path: Path) -> None:
    settings = unit(UNITS[name])
    assert "FLWR_TELEMETRY_ENABLED=0" in " ".join(settings.get("Environment", [])) or name == "fedfew-gate"
    assert settings["UMask"] == ["0077"]
    assert int(settings["RestartSec"][0]) >= (60 if name == "fedfew-supernode" else 1)
    if shutil.which("systemd-analyze"):
        path = tmp_path / f"{name}.service"
        path.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNITS[name]))
        done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_settings_named_in_the_text_exist() -> None:
    from dataclasses import fields

    from fedfew.flower.deployment_config import DeploymentConfig
    from fedfew.flower.site_data import KNOWN

    known = {field.name.replace("_", "-") for field in fields(DeploymentConfig)}
    (command,) = (line for block in blocks() for line in block.text.splitlines() if line.startswith("flwr run"))
    given = shlex.split(command)[-1]
    assert {pair.partition("=")[0] for pair in shlex.split(given)} <= known
    nodes = shlex.split(unit(UNITS["fedfew-supernode"])["ExecStart"][0])[-1]
    assert {pair.partition("=")[0] for pair in shlex.split(nodes)} | {"share-scores"} <= set(KNOWN)


# -- for real ----------------------------------------------------------------------------------------------------------------


class Machines:
    """The machines of the guide, each a folder here."""

    def __init__(self, folder: Path, here: Localhost) -> None:
        self.here = here
        self.folder = folder
        self.port, self.gate = free_port(), free_port()
        self.ports = {site: free_port() for site in SITES}
        self.output: list[str] = []
        played = folder / "played"
        for name, lines in PLAYED.items():
            self._script(played / name, lines)
        programs = folder / "programs"
        for path in [*Path(sys.executable).parent.glob("fl*"), played / "pip", played / "fedfew"]:
            programs.mkdir(exist_ok=True)
            (programs / path.name).symlink_to(path)

    def home(self, machine: str) -> Path:
        path = self.folder / machine / "srv" / "fedfew"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def localised(self, text: str, machine: str) -> str:
        """The text as it is on this machine."""
        text = text.replace("superlink.example.org", "127.0.0.1").replace("8443", str(self.gate))
        text = text.replace(":8000", f":{self.port}").replace("--port 8000", f"--port {self.port}")
        text = text.replace("rounds=100", "rounds=2").replace("/srv/fedfew", str(self.home(machine)))
        if machine in SITES:
            text = text.replace("--port 9094", f"--port {self.ports[machine]}")
            text = text.replace("client=0", f"client={SITES[machine]}").replace("client-0", f"client-{SITES[machine]}")
            text = text.replace("north", machine)
        return text

    def do(self, block: Block, machine: str) -> None:
        text = self.localised(block.text, machine)
        if block.language == "toml":
            path = Path(re.match(r"# (\S+)", text)[1].replace("~", str(self.home(machine))))  # type: ignore[index]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif block.language == "sh":
            for line in text.splitlines():
                if line.startswith("sudo systemctl"):
                    self.systemctl(line.split()[2:], machine)
                else:
                    self.output.append(
                        self.here.call("bash", "-ec", f"cd {self.home(machine)}; {line}", environment=self.environment(machine))
                    )

    def environment(self, machine: str) -> dict[str, str]:
        home = self.home(machine)
        return {
            "HOME": str(home),
            "FLWR_HOME": str(home / ".flwr"),
            "PATH": f"{self.folder / 'played'}:{home / 'venv' / 'bin'}:/usr/bin:/bin",
            "PROGRAMS": str(self.folder / "programs"),
            "INSTALLED": str(self.folder / "installed.txt"),
        }

    def systemctl(self, words: list[str], machine: str) -> None:
        name, key = words[-1], f"{words[-1]}-{machine}"
        if words[0] == "stop":
            program = self.here.programs.pop(key)
            program.popen.terminate()
            program.popen.wait(600)
            return
        assert words[:-1] in (["enable", "--now"], ["start"]), words
        settings = unit(self.localised(UNITS[name], machine))
        variables = dict(pair.split("=", 1) for line in settings.get("Environment", []) for pair in shlex.split(line))
        run = ("sh", "-c", f'umask {settings["UMask"][0]}; exec "$@"', "sh")
        self.here.start(key, *run, *shlex.split(settings["ExecStart"][0]), environment=variables)
        if machine == "coordinator":
            port = self.port if name == "fedfew-superlink" else self.gate
            self.here.wait_for(lambda: listening(port), name, alive=(key,))

    @staticmethod
    def _script(path: Path, lines: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with Localhost(tmp_path) as here:
        yield Machines(tmp_path, here)
    assert processes_of(tmp_path) == []


@pytest.mark.deploy
def test_the_guide_from_beginning_to_end(machines: Machines) -> None:
    coordinator = machines.home("coordinator")
    for machine in ("coordinator", *SITES):
        (machines.home(machine) / "fedfew").symlink_to(REPOSITORY)
    digits = fedfew.data.digits(4)
    for site, client in SITES.items():
        (x, y), (x_test, y_test) = digits.train.of(client), digits.test.of(client)
        np.savez(machines.home(site) / "data.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
        np.savez(machines.home(site) / "new.npz", x=x_test)
    np.savez(machines.home("new-site") / "mine.npz", x=digits.train.of(2)[0], y=digits.train.of(2)[1])
    for block in blocks():
        if block.at == "coordinator, for every site":
            for site in SITES:  # keys and the CA's certificate travel
                shutil.copy(machines.home(site) / f"certs/sites/{site}.pub", coordinator)
                shutil.copy(coordinator / "certs/ca.crt", machines.home(site) / "certs")
                machines.do(Block(block.language, block.text.replace("north", site), block.at), "coordinator")
        elif block.at == "new site":
            shutil.copytree(coordinator / "first-models", machines.home("new-site") / "first-models")
            (machines.home("new-site") / "venv").symlink_to(coordinator / "venv")
            machines.do(block, "new-site")
        elif block.language in ("sh", "toml"):
            for machine in SITES if block.at == "site" else ["coordinator"]:
                machines.do(block, machine)
    output = "\n".join(machines.output)
    assert "round 2 of 2" in output
    run = fedfew.load(coordinator / "runs/first")
    assert (run.round, run.settings["method"]["models"], run.state.events) == (2, 2, [])
    messages = [json.loads(line) for line in (machines.home("north") / "state/client-0/audit.jsonl").read_text().splitlines()]
    assert "int8" in {array["type"] for message in messages for array in message["arrays"]}
    predicted = [text for text in machines.output if text.startswith("row,prediction\n")]
    assert [len(text.splitlines()) for text in predicted] == [1 + len(digits.test.of(client)[0]) for client in SITES.values()]
    assert fedfew.load_model(machines.home("new-site") / "model.safetensors")(digits.train.of(2)[0]).shape[1] == 10
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "flower" in extras
    installed = (machines.folder / "installed.txt").read_text().splitlines()
    assert {re.sub(r"/\S*/srv/", "", line) for line in installed} == {"install fedfew/fedfew[flower]"}
    for site in SITES:  # the unit lets a site write to two folders; nothing has been written elsewhere
        there = {path.name for path in machines.home(site).iterdir()}
        assert there == {"fedfew", "venv", "certs", "data.npz", "new.npz", "state", "flwr"}, there
    private = [*coordinator.glob("state.db*"), *(path for site in SITES for path in machines.home(site).glob("state/**/*"))]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600, 0o700}
    again = tuple(f"fedfew-supernode-{site}" for site in SITES)  # stopped and started: let in at once, not refused
    activated = "SuperNode ID"
    machines.here.wait_for(
        lambda: all(machines.here.programs[name].text().count(activated) == 2 for name in again), "the sites", alive=again
    )
