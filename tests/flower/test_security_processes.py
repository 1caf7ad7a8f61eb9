"""A real SuperLink with TLS and keys behind its gate, and real SuperNodes: the registered one gets in, all others are refused.

What is started is what ``fedfew flower certs`` prints.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from examples.localhost import Localhost, Program, free_port, listening

from fedfew.cli import flower_certs
from fedfew.flower import certs
from tests.flower.support import ENVIRONMENT

pytestmark = pytest.mark.deploy
PATIENCE = 600.0


class Federation:
    """A running SuperLink, its gate, and one registered site, ``north``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.gate = free_port(), free_port()
        certs.write(folder / "certs", ["127.0.0.1"], ["north", "stranger"])
        certs.write(folder / "elsewhere", ["127.0.0.1"])
        text = flower_certs.commands(folder / "certs", ["127.0.0.1"], ["north"])
        text = text.replace(":8000", f":{self.port}").replace("port 8000", f"port {self.port}")
        self.printed = text.replace(":8443", f":{self.gate}").replace("port 8443", f"port {self.gate}")
        begin = self.printed.index("[superlink.federation]")
        connection = self.printed[begin : self.printed.index("\n\n", begin)]
        through_gate = connection.replace("superlink.federation", "superlink.gate").replace(str(self.port), str(self.gate))
        self.here = Localhost(folder, ENVIRONMENT)
        (folder / "flwr" / "config.toml").write_text(connection + "\n\n" + through_gate)

    def typed(self, program: str) -> list[str]:
        """The printed command of a program, as words."""
        line = next(line for line in self.printed.splitlines() if line.startswith(program))
        first, *words = line.split()
        return [sys.executable, "-m", "fedfew", *words] if first == "fedfew" else [first, *words]

    def start(self, name: str, command: list[str]) -> Program:
        return self.here.start(name, *command)

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = self.here.environment
        return subprocess.run(["flwr", *words], env=environment, capture_output=True, text=True, timeout=PATIENCE)

    def nodes(self) -> list[dict[str, Any]]:
        listed = self.flwr("supernode", "list", "federation", "--format", "json")
        assert listed.returncode == 0, listed.stdout + listed.stderr
        return json.loads(listed.stdout)["nodes"]

    def refusal(self, *words: str) -> str:
        """What a SuperNode started with these words says when it gives up, having been refused."""
        address = ["--superlink", f"127.0.0.1:{self.gate}", "--port", str(free_port()), "--max-retries", "1"]
        supernode = self.start(f"refused-{len(list(self.folder.iterdir()))}", ["flower-supernode", *address, *words])
        try:
            self.here.wait_for(lambda: not supernode.running(), "the SuperNode to give up", PATIENCE)
        finally:
            supernode.end()
        assert supernode.popen.returncode != 0
        assert "SuperNode ID" not in supernode.text()
        assert len(self.nodes()) == 1
        return supernode.text()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    it = Federation(tmp_path_factory.mktemp("secure"))
    with it.here:
        superlink = it.start("superlink", it.typed("flower-superlink"))
        it.start("gate", it.typed("fedfew"))
        it.here.wait_for(lambda: "Uvicorn running" in superlink.text(), "the SuperLink", PATIENCE, alive=("superlink",))
        it.here.wait_for(lambda: listening(it.gate), "the gate", PATIENCE, alive=("gate",))
        done = it.flwr(*it.typed("flwr supernode register")[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        yield it


def test_a_registered_key_gets_in(federation: Federation) -> None:
    assert [node["status"] for node in federation.nodes()] == ["registered"]
    supernode = federation.start("north", [*federation.typed("flower-supernode"), "--port", str(free_port())])
    try:
        online = ["online"]
        federation.here.wait_for(lambda: [node["status"] for node in federation.nodes()] == online, "the site", PATIENCE)
    finally:
        supernode.end()


def test_an_unknown_key_is_refused(federation: Federation) -> None:
    stranger = f"{federation.folder}/certs/sites/stranger"
    output = federation.refusal(
        "--root-certificates", f"{federation.folder}/certs/ca.crt", "--auth-supernode-private-key", stranger
    )
    assert "Failed to activate SuperNode" in output


def test_no_key_at_all_is_refused(federation: Federation) -> None:
    output = federation.refusal("--root-certificates", f"{federation.folder}/certs/ca.crt")
    assert "All SuperNodes must be registered" in output


def test_plain_text_is_refused(federation: Federation) -> None:
    assert "could not establish a connection" in federation.refusal("--insecure")


def test_a_site_that_trusts_another_ca_refuses_the_superlink(federation: Federation) -> None:
    """The other way round: a site does not speak to a SuperLink that its CA does not vouch for, registered key or not."""
    north = f"{federation.folder}/certs/sites/north"
    wrong = f"{federation.folder}/elsewhere/ca.crt"
    assert "certificate verify failed" in federation.refusal("--root-certificates", wrong, "--auth-supernode-private-key", north)


def test_through_the_gate_nobody_registers_keys(federation: Federation) -> None:
    key = f"{federation.folder}/certs/sites/stranger.pub"
    done = federation.flwr("supernode", "register", key, "gate")
    assert done.returncode != 0
    assert len(federation.nodes()) == 1


def test_without_the_gate_everybody_does(federation: Federation) -> None:
    """Not what one would wish, but what Flower does. If this fails, Flower asks who it is: then the gate can go."""
    key = f"{federation.folder}/certs/sites/stranger.pub"
    done = federation.flwr("supernode", "register", key, "federation", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    stranger = str(json.loads(done.stdout)["node-id"])
    assert stranger in [node["node-id"] for node in federation.nodes()]
    assert federation.flwr("supernode", "unregister", stranger, "federation").returncode == 0
