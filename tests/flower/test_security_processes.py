"""A real SuperLink with TLS and keys, and real SuperNodes: the registered one gets in, all others are refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from fedfew.cli.flower_certs import commands
from fedfew.flower import certs

pytestmark = pytest.mark.deploy
PATIENCE = 60.0
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def typed(line: str) -> list[str]:
    """A command line as it is printed, with the program taken from where the tests run."""
    program, *words = line.split()
    return [str(Path(sys.executable).parent / program), *words]


def line_of(text: str, program: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(program))


@dataclass
class Federation:
    """A running SuperLink with one registered site, ``north``."""

    folder: Path
    port: int
    environment: dict[str, str]
    printed: str  # what `fedfew flower certs` told us to type

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = typed("flwr " + " ".join(words))
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)

    def nodes(self) -> list[dict[str, Any]]:
        listed = self.flwr("supernode", "list", "federation", "--format", "json")
        assert listed.returncode == 0, listed.stdout + listed.stderr
        return json.loads(listed.stdout)["nodes"]

    def refusal(self, *words: str) -> str:
        """What a SuperNode started with these words says when it gives up, having been refused."""
        address = f"--superlink 127.0.0.1:{self.port} --port {free_port()} --max-retries 1"
        command = typed(f"flower-supernode {address} " + " ".join(words))
        said = self.folder / "refused.log"
        with said.open("w") as log:  # no pipes: a program that the SuperNode started would hold them open
            code = subprocess.run(command, env=self.environment, stdout=log, stderr=log, timeout=PATIENCE).returncode
        output = said.read_text()
        assert code != 0, output
        assert "SuperNode ID" not in output
        assert len(self.nodes()) == 1
        return output


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder, port = tmp_path_factory.mktemp("secure"), free_port()
    certs.write(folder / "certs", ["127.0.0.1"], ["north", "stranger"])
    certs.write(folder / "elsewhere", ["127.0.0.1"])
    printed = (
        commands(folder / "certs", ["127.0.0.1"], ["north"]).replace(":8000", f":{port}").replace("port 8000", f"port {port}")
    )
    begin = printed.index("[superlink.federation]")
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(printed[begin : printed.index("\n\n", begin)])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # the SuperLink starts programs by name
    environment = os.environ | QUIET | {"FLWR_HOME": str(home), "PATH": path}
    with (folder / "superlink.log").open("w") as log:
        superlink = subprocess.Popen(
            typed(line_of(printed, "flower-superlink").replace("0.0.0.0", "127.0.0.1")),
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            it = Federation(folder, port, environment, printed)
            wait_for(lambda: "Uvicorn running" in (folder / "superlink.log").read_text(), superlink)
            done = it.flwr(*line_of(printed, "flwr supernode register").split()[1:])
            assert done.returncode == 0, done.stdout + done.stderr
            yield it
        finally:
            superlink.terminate()
            superlink.wait(PATIENCE)


def wait_for(condition: Any, process: subprocess.Popen[Any]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "the process ended early"
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.2)


def test_a_registered_key_gets_in(federation: Federation) -> None:
    assert [node["status"] for node in federation.nodes()] == ["registered"]
    command = typed(line_of(federation.printed, "flower-supernode") + f" --port {free_port()}")
    with (federation.folder / "north.log").open("w") as log:
        supernode = subprocess.Popen(command, env=federation.environment, stdout=log, stderr=log)
        try:
            wait_for(lambda: [node["status"] for node in federation.nodes()] == ["online"], supernode)
        finally:
            supernode.terminate()
            supernode.wait(PATIENCE)


def test_an_unknown_key_is_refused(federation: Federation) -> None:
    known = f"--root-certificates {federation.folder}/certs/ca.crt"
    stranger = f"--auth-supernode-private-key {federation.folder}/certs/sites/stranger"
    assert "Failed to activate SuperNode" in federation.refusal(known, stranger)


def test_no_key_at_all_is_refused(federation: Federation) -> None:
    said = federation.refusal(f"--root-certificates {federation.folder}/certs/ca.crt")
    assert "All SuperNodes must be registered" in said


def test_plain_text_is_refused(federation: Federation) -> None:
    assert "could not establish a connection" in federation.refusal("--insecure")


def test_a_site_that_trusts_another_ca_refuses_the_superlink(federation: Federation) -> None:
    """The other way round: a site does not speak to a SuperLink that its CA does not vouch for, registered key or not."""
    wrong = f"--root-certificates {federation.folder}/elsewhere/ca.crt"
    north = f"--auth-supernode-private-key {federation.folder}/certs/sites/north"
    assert "certificate verify failed" in federation.refusal(wrong, north)


def test_whoever_reaches_the_port_may_register_keys(federation: Federation) -> None:
    """Not what one would wish, but what Flower does, and what docs/deployment.md warns of: only /v1/fleet/ asks for keys.

    If this fails, Flower has closed the gap: drop the warning there and in `fedfew flower certs`.
    """
    key = f"{federation.folder}/certs/sites/stranger.pub"
    done = federation.flwr("supernode", "register", key, "federation", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    stranger = str(json.loads(done.stdout)["node-id"])
    assert stranger in [node["node-id"] for node in federation.nodes()]
    assert federation.flwr("supernode", "unregister", stranger, "federation").returncode == 0
