"""The gate before the SuperLink: what SuperNodes send gets through as it is, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

import httpx
import uvicorn
from examples.localhost import Localhost, free_port, listening

from fedfew.cli import app
from fedfew.flower import certs, gate
from tests.flower.support import ENVIRONMENT, clock_set


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    certs.write(folder, ["localhost"])
    return folder / "ca.crt"


def ask(authority: Path, method: str, path: str, superlink=None, **more):
    """An answer through the gate, and what the SuperLink behind it was asked."""
    seen = []

    async def pieces():
        yield b"ans"
        yield b"wer"

    def answered(request):
        seen.append(request)
        return httpx.Response(207, headers={"x-flwr": "yes", "connection": "close"}, content=pieces())

    async def once():
        it = gate.Gate("127.0.0.1:1", authority)
        await it._client.aclose()
        it._client = httpx.AsyncClient(transport=httpx.MockTransport(superlink or answered))
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
    assert request.headers["host"] == "127.0.0.1:1"


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
    output = []

    async def send(message):
        output.append(message)

    asyncio.run(gate.Gate("127.0.0.1:1", authority)({"type": "websocket", "raw_path": b"/v1/fleet/get-run"}, send, send))
    assert output == []


@pytest.mark.parametrize("command", ["gate", "certs"])
def test_without_flowers_packages_the_commands_say_what_to_install(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"fedfew.flower.{command}", None)
    monkeypatch.delattr(f"fedfew.flower.{command}")
    result = CliRunner().invoke(app, ["flower", command])
    assert result.exit_code == 2
    assert "[flower]'" in result.stderr


def test_what_is_too_large_is_refused(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_BODY", 10)
    assert ask(authority, "POST", "/v1/fleet/push-object", content=bytes(10))[0].status_code == 207

    async def unannounced():
        yield bytes(6)
        yield bytes(5)

    for content in (bytes(11), unannounced()):
        answer, seen = ask(authority, "POST", "/v1/fleet/push-object", content=content)
        assert answer.status_code == 413
        assert seen == []


def test_an_unreachable_superlink_gives_status_502(authority: Path) -> None:
    def gone(request):
        raise httpx.ConnectError("nobody there")

    assert ask(authority, "POST", "/v1/fleet/get-run", superlink=gone)[0].status_code == 502


def test_the_command_requires_certificates_that_are_valid_now(authority: Path, tmp_path: Path, monkeypatch) -> None:
    result = CliRunner().invoke(app, ["flower", "gate", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert "ca.crt does not exist: 'fedfew flower certs --host …' writes it" in result.stderr
    served = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server: served.append(server.config))
    # it closes all handlers of logs, and absl's closes what it writes to: pytest's capture, where an earlier test imported absl
    monkeypatch.setattr("uvicorn.Config.configure_logging", lambda config: None)
    result = CliRunner().invoke(app, ["flower", "gate", "--folder", str(authority.parent), "--port", "8444"])
    assert result.exit_code == 0, result.stderr
    (config,) = served
    assert (config.port, config.host, config.ssl_keyfile) == (8444, "0.0.0.0", str(authority.parent / "server.key"))
    for days, words in ((400, "server.pem expired on"), (-1, "ca.crt is not valid before")):
        clock_set(monkeypatch, days)
        result = CliRunner().invoke(app, ["flower", "gate", "--folder", str(authority.parent)])
        assert result.exit_code == 2
        assert words in result.stderr
        assert "this machine's clock says" in result.stderr
    assert len(served) == 1


@pytest.mark.parametrize("taken", [False, True])
def test_the_command_says_that_it_listens_when_it_does(taken: bool, authority: Path, monkeypatch) -> None:
    monkeypatch.setattr("uvicorn.Config.configure_logging", lambda config: None)  # as above
    port = free_port()
    with socket.socket() as other:
        if taken:
            other.bind(("127.0.0.1", port))
            other.listen()
        monkeypatch.setattr("uvicorn.Server.main_loop", lambda server: asyncio.sleep(0))
        words = ["flower", "gate", "--folder", str(authority.parent), "--host", "127.0.0.1", "--port", str(port)]
        result = CliRunner().invoke(app, words)
    assert result.exit_code == taken
    assert (f"listening on 127.0.0.1:{port}" in result.stderr) != taken


# -- attacks on a running gate -----------------------------------------------------------------------------------------------


class SuperLink(threading.Thread):
    """Counts the bytes of complete requests, and of those that break off."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        superlink = self
        self.complete: list[int] = []
        self.broken_off: list[int] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # http.server calls it
                length, got = int(self.headers["content-length"]), 0
                while got < length and (piece := self.rfile.read1(min(2**16, length - got))):
                    got += len(piece)
                (superlink.complete if got == length else superlink.broken_off).append(got)
                if got < length:
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def run(self) -> None:
        self.server.serve_forever(0.05)


@pytest.fixture
def superlink(authority: Path):
    it = SuperLink(authority.parent)
    it.start()
    yield it
    it.server.shutdown()


@pytest.fixture
def running(authority: Path, superlink: SuperLink):
    """A gate in this process: its port, its server, and a function that stops it. uvicorn itself never drops a connection."""
    server = uvicorn.Server(gate.server_config(authority.parent, superlink.address, "127.0.0.1", 0))
    server.config.timeout_keep_alive = 3600
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)

    def stop() -> None:
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()

    yield server.servers[0].sockets[0].getsockname()[1], server, stop
    stop()


def until(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def connect(port: int, authority: Path) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=authority)
    raw = socket.create_connection(("127.0.0.1", port), timeout=300)
    return context.wrap_socket(raw, server_hostname="127.0.0.1")


def post(size: int) -> bytes:
    return f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: gate\r\ncontent-length: {size}\r\n\r\n".encode()


def reply(connection: ssl.SSLSocket) -> bytes:
    text = b""
    while not text.endswith(b"\r\n\r\nok"):
        piece = connection.recv(1000)
        assert piece, text
        text += piece
    return text


def dropped(connection: ssl.SSLSocket) -> bool:
    """Does the gate close the connection (within the socket's time-out)?"""
    try:
        return connection.recv(1000) == b""
    except (ConnectionError, ssl.SSLError):
        return True


def test_a_request_gets_through_a_running_gate(running, superlink: SuperLink, authority: Path) -> None:
    with connect(running[0], authority) as connection:
        for size in (0, 3_000_000):
            connection.sendall(post(size)[:20])
            connection.sendall(post(size)[20:] + bytes(size))
            assert reply(connection).startswith(b"HTTP/1.1 200")
    assert superlink.complete == [0, 3_000_000]


def test_a_request_that_breaks_off_does_not_reach_the_superlink_as_if_complete(running, superlink, authority: Path) -> None:
    with connect(running[0], authority) as connection:
        connection.sendall(post(1000) + bytes(600))
    until(lambda: superlink.broken_off)
    assert superlink.complete == []


def test_a_body_of_unknown_length_that_breaks_off_is_not_forwarded_as_if_complete(authority: Path) -> None:
    """Without an announced length the SuperLink could not tell that the rest is missing."""
    events = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]
    seen, sent = [], []

    async def receive():
        return events.pop(0)

    async def send(event):
        sent.append(event)

    async def once():
        it = gate.Gate("127.0.0.1:1", authority)
        it._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: seen.append(request)))
        scope = {"type": "http", "method": "POST", "raw_path": b"/v1/fleet/push-object", "query_string": b"", "headers": []}
        await it(scope, receive, send)

    asyncio.run(once())
    assert (seen, sent, events) == ([], [], [])


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/fleet/push-object HT", b"whole request"], ids=["nothing", "half", "second half"]
)
def test_headers_that_do_not_end_do_not_hold_a_connection(sent: bytes, running, authority: Path, monkeypatch) -> None:
    first_comes = sent == b"whole request"
    monkeypatch.setattr(gate, "HEADER_SECONDS", 3600 if first_comes else 0.3)
    complete = gate.LimitedProtocol.on_response_complete

    def from_now_on(protocol: gate.LimitedProtocol) -> None:
        monkeypatch.setattr(gate, "HEADER_SECONDS", 0.3)
        complete(protocol)

    monkeypatch.setattr(gate.LimitedProtocol, "on_response_complete", from_now_on)
    with connect(running[0], authority) as connection:
        if first_comes:
            connection.sendall(post(0))
            assert reply(connection).startswith(b"HTTP/1.1 200")
            sent = b"POST /v1/fl"
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # where it is dropped already
            connection.sendall(sent)
        assert dropped(connection)


@pytest.mark.slow
def test_a_body_that_stalls_is_given_up(running, superlink: SuperLink, authority: Path, monkeypatch) -> None:
    monkeypatch.setattr(gate, "PIECE_SECONDS", 0.5)
    with connect(running[0], authority) as connection:
        connection.sendall(post(1000) + bytes(600))
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
    assert superlink.complete == []


def test_a_piece_that_comes_just_as_time_is_up_does_not_start_the_clock_anew(authority: Path, monkeypatch) -> None:
    """Python 3.11's wait_for forgets that it was cancelled when what it waits for is there at the same moment."""
    monkeypatch.setattr(gate, "REQUEST_SECONDS", 0.05)

    async def for_ever():
        end = time.monotonic() + 5
        while time.monotonic() < end:
            await asyncio.sleep(0)
            yield b"x"

    for _ in range(5):
        began = time.monotonic()
        assert ask(authority, "POST", "/v1/fleet/push-object", content=for_ever())[0].status_code == 504
        assert time.monotonic() - began < 4


@pytest.mark.slow
def test_a_body_that_trickles_in_is_given_up(running, superlink: SuperLink, authority: Path, monkeypatch) -> None:
    monkeypatch.setattr(gate, "REQUEST_SECONDS", 1.0)
    with connect(running[0], authority) as connection:
        connection.sendall(post(1000))
        connection.settimeout(0.2)
        for _ in range(900):
            connection.sendall(b"x")
            try:
                assert connection.recv(1000).startswith(b"HTTP/1.1 504")
                break
            except TimeoutError:
                continue
        else:
            pytest.fail("the gate waits for ever")
    assert superlink.complete == []


@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_PER_ADDRESS"])
def test_connections_are_limited(limit: str, running, authority: Path, monkeypatch) -> None:
    monkeypatch.setattr(gate, limit, 3)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(connect(running[0], authority))
            connection.sendall(post(0))
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        with connect(running[0], authority) as fourth:
            assert dropped(fourth)


@pytest.mark.slow
def test_it_shuts_down_whatever_is_held_open(running, authority: Path, monkeypatch) -> None:
    for limit in ("HEADER_SECONDS", "PIECE_SECONDS", "REQUEST_SECONDS"):
        monkeypatch.setattr(gate, limit, 3600)
    port, server, stop = running
    with connect(port, authority), connect(port, authority) as half, connect(port, authority) as stalled:
        half.sendall(b"POST /v1/fl")
        stalled.sendall(post(1000) + bytes(600))
        until(lambda: len(server.server_state.connections) == 3 and server.server_state.tasks)
        stop()


@pytest.mark.slow
def test_large_bodies_do_not_fill_the_memory(superlink: SuperLink, authority: Path, tmp_path: Path) -> None:
    """40 strangers send 20 MB each and never finish: 800 MB if bodies were collected before they are forwarded."""
    port = free_port()
    words = ["-m", "fedfew", "flower", "gate", "--folder", str(authority.parent), "--superlink", superlink.address]
    with Localhost(tmp_path, ENVIRONMENT) as here:
        program = here.start("gate", sys.executable, *words, "--host", "127.0.0.1", "--port", str(port))
        here.wait_for(lambda: listening(port), "the gate", alive=("gate",))
        before, piece = peak_memory(program.popen.pid), bytes(2**20)

        with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as pool:

            def send(_: int) -> None:
                connection = stack.enter_context(connect(port, authority))
                connection.sendall(post(30 * 2**20))
                for _ in range(20):
                    connection.sendall(piece)

            list(pool.map(send, range(40)))
            assert peak_memory(program.popen.pid) - before < 200 * 2**20
    assert superlink.complete == []


def peak_memory(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
