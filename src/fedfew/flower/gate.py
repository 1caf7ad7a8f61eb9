"""A reverse proxy in front of the SuperLink: sites reach the paths that require their key, and no others.

A SuperLink has one port for everything: /v1/fleet/ is for SuperNodes and requires a registered key, but whoever reaches
/v1/control/ may register keys and start runs, which runs code at every site. So the SuperLink listens on its own machine only,
and the gate forwards what SuperNodes post to /v1/fleet/ and answers everything else with 403.

Bodies are forwarded piece by piece, so that memory does not grow with their size. Everything that a stranger can make the gate
wait for has a time limit, and connections are limited in number.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedfew.flower import certs

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

FORWARDED = re.compile(rb"/v1/fleet/[a-z-]+")  # nothing that could be read as another path
MAX_BODY = 64 * 2**20  # bytes; Flower sends arrays in pieces of 5 MB
HEADER_SECONDS = 10.0  # from a connection, or the first byte of a further request, to the end of the headers
PIECE_SECONDS = 30.0  # between two pieces of a body
REQUEST_SECONDS = 600.0  # for a whole request and its reply: 64 MB at 1 Mbit/s
REPLY_SECONDS = 120.0  # for the SuperLink to reply
MAX_CONNECTIONS, MAX_PER_ADDRESS = 512, 64
SHUTDOWN_SECONDS = 5
HOP_HEADERS = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"}  # not to be forwarded


class BodyError(Exception):
    """A body that cannot be forwarded to its end; status: what to answer (0: nobody is there to answer to)."""

    def __init__(self, status: int) -> None:
        self.status = status


class Gate:
    """The gate as an ASGI app. superlink: its address, host:port; authority: the CA's certificate."""

    def __init__(self, superlink: str, authority: Path) -> None:
        trusted = ssl.create_default_context(cafile=str(authority))
        self._url = f"https://{superlink}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.AsyncClient(verify=trusted, timeout=REPLY_SECONDS, limits=limits, trust_env=False)

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: bytes = scope["raw_path"]
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP_HEADERS | {b"host"}]
        length = dict(headers).get(b"content-length", b"0")
        if scope["method"] != "POST" or not FORWARDED.fullmatch(path) or scope["query_string"]:
            await _refuse(send, 403, b"only SuperNodes may connect\n")
        elif not length.isdigit() or int(length) > MAX_BODY:
            await _refuse(send, 413, b"too large\n")
        else:
            request = httpx.Request("POST", self._url + path.decode("ascii"), headers=headers, content=_body(receive))
            await self._forward(request, send)

    async def _forward(self, request: httpx.Request, send: Send) -> None:
        started = False
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                reply = await self._client.send(request, stream=True)
                try:
                    headers = [(name, value) for name, value in reply.headers.raw if name.lower() not in HOP_HEADERS]
                    await send({"type": "http.response.start", "status": reply.status_code, "headers": headers})
                    started = True
                    async for piece in reply.aiter_raw():
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    await send({"type": "http.response.body", "body": b""})
                finally:
                    await reply.aclose()
        except (BodyError, TimeoutError, httpx.HTTPError) as error:
            status = error.status if isinstance(error, BodyError) else 504 if isinstance(error, TimeoutError) else 502
            if started:
                raise  # the reply is incomplete: closing the connection is the only way to say so
            if status:
                await _refuse(send, status, b"the request or the SuperLink's reply was not completed\n")


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    """A request's body, piece by piece. A body that breaks off, stalls or is too large ends in an error, never as if complete."""
    size = 0
    while True:
        try:
            async with asyncio.timeout(PIECE_SECONDS):  # wait_for can lose a cancellation (Python 3.11)
                event = await receive()
        except TimeoutError:
            raise BodyError(408) from None
        if event["type"] == "http.disconnect":
            raise BodyError(0)
        size += len(event.get("body", b""))
        if size > MAX_BODY:
            raise BodyError(413)
        yield event.get("body", b"")
        if not event.get("more_body"):
            return


async def _refuse(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 that drops a connection which is one too many, or does not complete a request's headers in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        addresses = [other.client[0] for other in self.connections if isinstance(other, LimitedProtocol) and other.client]
        if len(self.connections) > MAX_CONNECTIONS or (self.client and addresses.count(self.client[0]) > MAX_PER_ADDRESS):
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()  # the beginning of the next request may have come with the end of this one

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self._in_request():
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if not self._in_request():
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def server_config(folder: Path, superlink: str, host: str, port: int) -> uvicorn.Config:
    """The gate's server, with the SuperLink's own certificate from ``folder``."""
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} does not exist: 'fedfew flower certs --host …' writes it")
    certs.check_valid_now(folder / "ca.crt")
    certs.check_valid_now(folder / "server.pem")
    return uvicorn.Config(
        Gate(superlink, folder / "ca.crt"),
        host=host,
        port=port,
        ssl_certfile=folder / "server.pem",
        ssl_keyfile=str(folder / "server.key"),
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


class GateServer(uvicorn.Server):
    """A server that calls ``listening`` when sites can connect, and not before: its port may be taken."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._listening()


def serve(folder: Path, superlink: str, host: str, port: int, listening: Callable[[], None]) -> None:
    """Serve until Ctrl-C."""
    GateServer(server_config(folder, superlink, host, port), listening).run()
