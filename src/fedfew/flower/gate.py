"""A reverse proxy in front of the SuperLink: sites reach the paths that require their key, and no others.

A SuperLink has one port for everything: /v1/fleet/ is for SuperNodes and requires a registered key, but whoever reaches
/v1/control/ may register keys and start runs, which runs code at every site. So the SuperLink listens on its own machine only,
and the gate forwards what SuperNodes post to /v1/fleet/ and answers everything else with 403.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PASSED = re.compile(rb"/v1/fleet/[a-z-]+")  # nothing that could be read as another path
LARGEST = 64 * 2**20  # bytes of a request; Flower cuts arrays into pieces of 5 MB
PATIENCE = 120.0  # seconds for the SuperLink to answer
OWN = {
    b"host",
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"content-length",
    b"upgrade",
    b"te",
    b"trailer",
}  # of each hop


class Gate:
    """The gate as an ASGI app. superlink: its address, host:port; authority: the CA that vouches for it."""

    def __init__(self, superlink: str, authority: Path) -> None:
        trusted = ssl.create_default_context(cafile=str(authority))
        self._client = httpx.AsyncClient(base_url=f"https://{superlink}", verify=trusted, timeout=PATIENCE, trust_env=False)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: bytes = scope["raw_path"]
        if scope["method"] != "POST" or not PASSED.fullmatch(path) or scope["query_string"]:
            await _answer(send, 403, b"only SuperNodes get through here\n")
            return
        body = await _body(receive)
        if body is None:
            await _answer(send, 413, b"too large\n")
            return
        headers = [(name, value) for name, value in scope["headers"] if name not in OWN]
        try:
            reply = await self._client.post(path.decode("ascii"), content=body, headers=headers)
        except httpx.HTTPError:
            await _answer(send, 502, b"the SuperLink does not answer\n")
            return
        kept = [(name, value) for name, value in reply.headers.raw if name.lower() not in OWN | {b"content-encoding"}]
        await _answer(send, reply.status_code, reply.content, kept)


async def _body(receive: Receive) -> bytes | None:
    """All of a request's body; None where it is too large."""
    pieces, size = [], 0
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > LARGEST:
            return None
        if not message.get("more_body"):
            return b"".join(pieces)


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or []), length]})
    await send({"type": "http.response.body", "body": body})


def serve(folder: Path, superlink: str, host: str, port: int) -> None:
    """Stand at the gate until Ctrl-C, with the SuperLink's own certificate from ``folder``."""
    for name in ("ca.crt", "server.pem", "server.key"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is not there: 'fedfew flower certs --host …' writes it")
    uvicorn.run(
        Gate(superlink, folder / "ca.crt"),
        host=host,
        port=port,
        ssl_certfile=folder / "server.pem",
        ssl_keyfile=str(folder / "server.key"),
        lifespan="off",
        log_level="warning",
        server_header=False,
    )
