"""The gate before the SuperLink: what SuperNodes dispatcher gets through as it is, and nothing else does."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

import httpx

from fedfew.cli import app
from fedfew.flower import certs, gate


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    certs.write(folder, ["localhost"])
    return folder / "ca.crt"


def ask(authority: Path, method: str, path: str, superlink=None, **more):
    """An answer through the gate, and what the SuperLink behind it was asked."""
    seen = []

    def answered(request):
        seen.append(request)
        return httpx.Response(207, headers={"x-flwr": "yes", "connection": "close"}, content=b"answer")

    async def once():
        it = gate.Gate("127.0.0.1:1", authority)
        await it._client.aclose()
        it._client = httpx.AsyncClient(base_url="https://link", transport=httpx.MockTransport(superlink or answered))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(it), base_url="https://gate") as client:
            return await client.request(method, path, **more)

    return asyncio.run(once()), seen


def test_what_a_supernode_posts_gets_through_as_it_is(authority: Path) -> None:
    answer, seen = ask(authority, "POST", "/v1/fleet/pull-messages", content=b"\x00signed", headers={"x-signature": "abc"})
    assert (answer.status_code, answer.content, answer.headers["x-flwr"]) == (207, b"answer", "yes")
    assert "connection" not in answer.headers
    (request,) = seen
    assert (request.method, request.url.path, request.content) == ("POST", "/v1/fleet/pull-messages", b"\x00signed")
    assert request.headers["x-signature"] == "abc"
    assert request.headers["host"] == "link"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/runtime/pull-task"),
        ("GET", "/v1/fleet/pull-messages"),
        ("GET", "/docs"),
        ("GET", "/"),
        ("POST", "/v1/fleet/"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet/a%2f..%2f..%2fcontrol%2fstart-run"),
        ("POST", "/v1/fleet//control/start-run"),
        ("POST", "/V1/fleet/get-run"),
        ("POST", "/v1/fleet/get-run?to=/v1/control"),
    ],
)
def test_nothing_else_does(authority: Path, method: str, path: str) -> None:
    answer, seen = ask(authority, method, path)
    assert answer.status_code == 403
    assert seen == []


def test_a_web_socket_is_not_opened(authority: Path) -> None:
    said = []

    async def send(message):
        said.append(message)

    asyncio.run(gate.Gate("127.0.0.1:1", authority)({"type": "websocket", "raw_path": b"/v1/fleet/get-run"}, send, send))
    assert said == []


@pytest.mark.parametrize("command", ["gate", "certs"])
def test_without_flowers_packages_the_commands_say_what_to_install(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"fedfew.flower.{command}", None)
    monkeypatch.delattr(f"fedfew.flower.{command}")
    result = CliRunner().invoke(app, ["flower", command])
    assert result.exit_code == 2
    assert "pip install 'fedfew[flower]'" in result.stderr


def test_what_is_too_large_is_refused(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "LARGEST", 10)
    assert ask(authority, "POST", "/v1/fleet/push-object", content=bytes(10))[0].status_code == 207
    answer, seen = ask(authority, "POST", "/v1/fleet/push-object", content=bytes(11))
    assert answer.status_code == 413
    assert seen == []


def test_an_unreachable_superlink_gives_status_502(authority: Path) -> None:
    def gone(request):
        raise httpx.ConnectError("nobody there")

    assert ask(authority, "POST", "/v1/fleet/get-run", superlink=gone)[0].status_code == 502


def test_the_command_wants_its_certificates_and_serves_with_them(authority: Path, tmp_path: Path, monkeypatch) -> None:
    result = CliRunner().invoke(app, ["flower", "gate", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert "ca.crt is not there: 'fedfew flower certs --host …' writes it" in result.stderr
    served = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: served.update(options, app=app))
    result = CliRunner().invoke(app, ["flower", "gate", "--folder", str(authority.parent), "--port", "8444"])
    assert result.exit_code == 0, result.stderr
    assert (served["port"], served["host"], served["ssl_keyfile"]) == (8444, "0.0.0.0", str(authority.parent / "server.key"))
    assert isinstance(served["app"], gate.Gate)
