"""``fedfew flower certs``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfew.cli import errors, flags
from fedfew.util.extras import install_command

if TYPE_CHECKING:
    from fedfew.flower.certs import File

SUPERLINK, GATE = 8000, 8443  # ports


@errors.readable
def certs(
    host: Annotated[
        list[str] | None, typer.Option(help="Name or IP address under which sites reach the SuperLink; may be repeated.")
    ] = None,
    site: Annotated[list[str] | None, typer.Option(help="Name of a site that needs a key pair; may be repeated.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("certs"),
    server_days: Annotated[int, typer.Option(help="Days the server certificate is valid.")] = 365,
    ca_days: Annotated[int, typer.Option(help="Days a new CA is valid.")] = 3650,
    renew_server: Annotated[bool, typer.Option("--renew-server", help="Replace the server certificate and its key.")] = False,
    json: flags.Json = False,
) -> None:
    """Write the keys and certificates of a federation on Flower, and print where each belongs.

    With --host: a CA of your own and the SuperLink's certificate. With --site: the key pair by which the SuperLink knows a site;
    it is best made at the site, which then sends the .pub file only. Existing files are never overwritten, so the command can
    be repeated with more sites; only --renew-server replaces something, and sites need no change.

    Example: [cyan]fedfew flower certs --host superlink.example.org --site north --site south[/cyan]
    """
    try:
        from fedfew.flower import certs as certificates
    except ImportError as error:
        raise ImportError(f"keys and certificates need the package cryptography: {install_command('flower')}") from error

    files = certificates.write(
        folder, host or [], site or [], server_days=server_days, ca_days=ca_days, renew_server=renew_server
    )
    if json:
        from fedfew.report import tables

        tables.print_json({"files": [{"path": str(f.path), "about": f.about, "kept": f.kept} for f in files]})
        return
    _show(files)
    typer.echo("\n" + commands(folder, host or [], site or []))


def _show(files: list[File]) -> None:
    widest = max(len(str(file.path)) for file in files)
    for file in files:
        typer.echo(f"{'kept   ' if file.kept else 'written'}  {file.path!s:<{widest}}  {file.about}")


def commands(folder: Path, hosts: list[str], sites: list[str]) -> str:
    """The commands to type, and where, with these files; tests run exactly these."""
    lines = []
    if hosts:
        lines += [
            "# The SuperLink, on a machine with ca.crt, server.pem, server.key. Whoever reaches its port can register keys and",
            "# start runs, so it listens on its own machine only; sites connect through the gate, which allows neither.",
            "umask 077",
            f"flower-superlink --ssl-ca-certfile {folder}/ca.crt --ssl-certfile {folder}/server.pem"
            f" --ssl-keyfile {folder}/server.key --enable-supernode-auth --database state.db --host 127.0.0.1 --port {SUPERLINK}",
            f"fedfew flower gate --folder {folder} --superlink 127.0.0.1:{SUPERLINK} --port {GATE}",
            "",
            "# On the same machine, in ~/.flwr/config.toml ($FLWR_HOME/config.toml): the connection by which runs are started",
            "[superlink.federation]",
            f'address = "127.0.0.1:{SUPERLINK}"',
            f'root-certificates = "{(folder / "ca.crt").absolute()}"',
            "",
        ]
    host = hosts[0] if hosts else "SUPERLINK"
    gate = f"[{host}]:{GATE}" if ":" in host else f"{host}:{GATE}"
    for name in sites:
        key = folder / "sites" / name
        lines += [
            f"# Site {name}: registered at the SuperLink ({name}.pub), then started at the site ({name} and ca.crt)",
            f"flwr supernode register {key}.pub federation --name {name}",
            f"flower-supernode --root-certificates {folder}/ca.crt --auth-supernode-private-key {key} --superlink {gate}",
            "",
        ]
    return "\n".join(lines).rstrip()
