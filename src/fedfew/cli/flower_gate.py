"""``fedfew flower gate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfew.cli import errors, flags


def add_to(app: typer.Typer) -> None:
    app.command(help=flags.flowing(gate.__doc__))(gate)


@errors.readable
def gate(
    folder: Annotated[Path, typer.Option(help="What 'fedfew flower certs' wrote: ca.crt, server.pem and server.key.")] = Path(
        "certs"
    ),
    superlink: Annotated[str, typer.Option(help="Where the SuperLink is, on this machine.")] = "127.0.0.1:8000",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine's.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that sites connect to.")] = 8443,
) -> None:
    """Let sites through to the SuperLink, and nobody to anything else it offers.

    A SuperLink asks SuperNodes for their key, but lets whoever reaches its port register keys and start runs. Keep it to its own
    machine (--host 127.0.0.1) and put this before it: only what SuperNodes need is passed on. Runs until Ctrl-C.
    """
    try:
        from fedfew.flower import gate as standing
    except ImportError as error:
        raise ImportError("the gate needs Flower's packages: pip install 'fedfew[flower]'") from error

    typer.echo(f"sites come in at {host}:{port} and are let through to {superlink}", err=True)
    standing.serve(folder, superlink, host, port)
