"""The page of a run in progress, served to this machine only.

/             the page
/status.json  how far the run is, as text, and the tag of the newest data; small, requested every two seconds
/data.json    the document, with an ETag; made again only when there is a new checkpoint
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedfew._version import __version__
from fedfew.report.page import html
from fedfew.report.page.of_folder import of_folder
from fedfew.training.checkpoint import CheckpointError, checkpoints
from fedfew.training.run_files import COSTS, FINAL_SCORES, progress

HOST = "127.0.0.1"
QUIET = 60.0  # seconds without progress after which the page says so


class Watched:
    """The folder of a run, read again whenever it changes. every: milliseconds after which the page asks again."""

    def __init__(self, folder: Path, every: int = 2000) -> None:
        self.folder = folder
        self._live = {"every": every}
        self._lock = threading.Lock()
        self._kept: dict[str, Any] = self._waiting()

    def tag(self) -> str:
        """Changes when there is something new to draw."""
        found = checkpoints(self.folder)
        try:
            files = [found[-1], *(self.folder / name for name in (FINAL_SCORES, COSTS))] if found else []
            return "-".join([found[-1].name, *(str(f.stat().st_mtime_ns) for f in files if f.exists())]) if found else "waiting"
        except FileNotFoundError:  # replaced just now
            return self.tag()

    def document(self) -> dict[str, Any]:
        """The newest document; the one before where the newest cannot be read."""
        with self._lock:
            tag = self.tag()
            if tag != self._kept["tag"] and tag != "waiting":
                try:
                    self._kept = of_folder(self.folder) | {"live": self._live, "tag": tag}
                except (CheckpointError, OSError) as error:
                    self._kept = self._kept | {"error": str(error)}
            return self._kept

    def status(self) -> dict[str, Any]:
        """How far the run is, as text."""
        shown = {} if "waiting" in self._kept else self._kept["run"]
        now = progress(self.folder)
        if not now:
            return self._without_progress(shown)
        state, age = now["state"], now["age"]
        words = f"Round {now['round']} of {now['rounds']}"
        more = []
        if state == "finished":
            words = f"Finished: round {now['round']} of {now['rounds']}"
        elif state == "stopped":
            words = f"Stopped {now.get('why', '')} after round {now['round']} of {now['rounds']}".replace("  ", " ")
        elif age > QUIET:
            more.append("Nothing has been written since: a round may take long, or the run was killed")
        if state == "running" and now.get("served") is not None:
            more.append(f"Served {100 * now['served']:.1f} %, adapted {100 * (now.get('adapted') or 0):.1f} % in the mean")
        if state != "finished" and shown and shown["round"] < now["round"]:
            every = shown.get("checkpoint_every")
            often = f", which comes every {every} rounds" if every else ""
            more.append(f"The charts show round {shown['round']}, the newest checkpoint{often}")
        elif not shown and state == "running":
            more.append("Charts come with the first checkpoint")
        return {"state": state, "words": words, "age": age, "more": ". ".join(more), "tag": self.tag()}

    def _without_progress(self, shown: dict[str, Any]) -> dict[str, Any]:
        """The status from checkpoints alone: of a run that writes no progress (on Flower, or from Python), or of none at all."""
        found = checkpoints(self.folder)
        if not found:
            where = "has no checkpoint yet" if self.folder.exists() else "is not there yet"
            words = f"Waiting for a run: the folder {self.folder.name} {where}"
            return {"state": "waiting", "words": words, "age": None, "more": "", "tag": "waiting"}
        done = int(found[-1].name.removeprefix("round-"))
        rounds = shown.get("rounds")
        finished = rounds == done
        words = f"{'Finished: round' if finished else 'Round'} {done}" + (f" of {rounds}" if rounds else "")
        try:
            age = max(0.0, time.time() - found[-1].stat().st_mtime)
        except FileNotFoundError:
            age = 0.0
        more = "" if finished else "What is shown is the newest checkpoint"
        return {"state": "finished" if finished else "running", "words": words, "age": age, "more": more, "tag": self.tag()}

    def _waiting(self) -> dict[str, Any]:
        run = {"folder": self.folder.name, "clients": 0, "classes": 0, "model": "", "round": 0, "rounds": 0, "sites": False}
        waiting = {"kind": "run", "title": "Waiting for a run", "waiting": True, "run": run, "events": {"all": 0, "newest": []}}
        return waiting | {"made": {"fedfew": __version__}, "live": self._live, "tag": "waiting"}


class Server(ThreadingHTTPServer):
    """Answers requests from this machine only, and only under its own name."""

    daemon_threads = True
    watched: Watched

    @property
    def address(self) -> str:
        return f"http://localhost:{self.server_port}"

    @property
    def hosts(self) -> set[str]:
        """Names of this server that a browser may use. Any other is a foreign page made to point here (DNS rebinding)."""
        return {f"{name}:{self.server_port}" for name in ("localhost", HOST)}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "fedfew", ""
    timeout = 30

    def do_GET(self) -> None:
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            return self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"This is {self.server.address}, nothing else.\n")
        watched = self.server.watched
        match self.path.partition("?")[0]:
            case "/":
                return self._send(HTTPStatus.OK, "text/html", html.page(watched.document(), live=True))
            case "/status.json":
                return self._send(HTTPStatus.OK, "application/json", json.dumps(watched.status()))
            case "/data.json":
                document = watched.document()
                etag = f'"{document["tag"]}"'
                if self.headers.get("If-None-Match") == etag:
                    return self._send(HTTPStatus.NOT_MODIFIED, "application/json", "", ETag=etag)
                return self._send(HTTPStatus.OK, "application/json", html.as_data(document), ETag=etag)
        return self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is /, /status.json and /data.json.\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, status: HTTPStatus, kind: str, text: str, **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        sent = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in (sent | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal shows the address."""


@contextmanager
def serving(watched: Watched, port: int) -> Iterator[Server]:
    """A server that is ready to ``serve_forever``, at a port of this machine (0: any free one)."""
    try:
        server = Server((HOST, port), _Handler)
    except OSError as error:
        raise ValueError(
            f"--port is {port}, which cannot be had ({error.strerror}): choose another, or 0 for a free one"
        ) from error
    server.watched = watched
    with server:
        yield server
