"""``fedfew flower gate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfew.cli import errors
from fedfew.util.extras import install_command


@errors.readable
def gate(
    folder: Annotated[
        Path, typer.Option(help="Folder of ca.crt, server.pem and server.key ('fedfew flower certs' writes them).")
    ] = Path("certs"),
    superlink: Annotated[str, typer.Option(help="Address of the SuperLink on this machine.")] = "127.0.0.1:8000",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all interfaces.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that sites connect to.")] = 8443,
) -> None:
    """Reverse proxy in front of the SuperLink that forwards only what SuperNodes need.

    A SuperLink requires a key of SuperNodes, but lets whoever reaches its port register keys and start runs. Let it listen on its
    own machine only (--host 127.0.0.1), and let sites connect to this gate. Runs until Ctrl-C.
    """
    try:
        from fedfew.flower import gate as proxy
    except ImportError as error:
        raise ImportError(f"the gate needs Flower's packages: {install_command('flower')}") from error

    line = f"listening on {host}:{port}, forwarding to {superlink}"
    proxy.serve(folder, superlink, host, port, lambda: typer.echo(line, err=True))
