"""``fedfew flower``: the commands of a federation on a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedfew.cli import errors, export, flags, flower_certs, flower_gate, places
from fedfew.util.extras import install_command
from fedfew.util.files import check_writable

app = typer.Typer(no_args_is_help=True)


@app.command()
@errors.readable
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write the app to; it must not exist yet, or be empty.")],
    json: flags.Json = False,
) -> None:
    """Write a Flower app to start from: settings, server app and client app.

    Example: [cyan]fedfew flower init my-federation[/cyan]
    """
    from fedfew.flower import template
    from fedfew.report import tables

    paths = template.write(folder)
    if json:
        tables.print_json({"files": [str(path) for path in paths]})
        return
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for path in paths:
        console.print(f"written  {path}")
    console.print(f"\nTry it: flwr run {places.argument(folder)} local --stream --federation-config num-supernodes=4 ")
    console.print(f"That needs: {install_command('simulation')}", markup=False, soft_wrap=True)
    if not _has_flower():
        console.print(f"Flower is not installed here yet: {install_command('flower')}", style="yellow", markup=False)


@app.command()
@errors.readable
def check(
    config: Annotated[str, typer.Argument(metavar="NODE_CONFIG", help="The --node-config of flower-supernode.")],
    json: flags.Json = False,
) -> None:
    """Check a site's configuration: load its data and print what the server would learn when the site joins.

    Nothing is sent anywhere.

    Example: [cyan]fedfew flower check 'client=0 data="mine.npz" classes=10'[/cyan]
    """
    try:
        from fedfew.flower import site_data
        from fedfew.flower.messages import JOIN, SiteMessage
        from fedfew.flower.site import Site
    except ModuleNotFoundError as error:
        raise ImportError(
            f"a site needs the package {error.name}, which is not installed: {install_command('flower')}"
        ) from error
    from fedfew.report import tables

    site = Site(site_data.SiteConfig.read(parse(config), {}), "mlp")
    site_data.load(site.config)  # by itself first: its errors are printed here in full
    check_writable(site.folder, folder=True)
    reported = site.handle(SiteMessage(JOIN)).values
    if json:
        tables.print_json({"reported": reported, "state": str(site.folder)})
        return
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print("When it joins, the server learns:")
    for name, value in reported.items():
        console.print(f"  {name:<13} {value}")
    console.print(f"The site keeps its state and its logs in {site.folder}.")


def parse(config: str) -> dict[str, Any]:
    """key=value pairs separated by spaces, as Flower reads them: TOML values."""
    import re
    import tomllib

    pair = r"""([\w.-]+)\s*=\s*("[^"]*"|'[^']*'|\S+)"""
    pairs = re.findall(pair, config)
    if not pairs or re.sub(pair, "", config).strip():
        raise ValueError(f"a node's configuration is key=value pairs separated by spaces, texts in quotes, not {config!r}")
    try:
        return {key: tomllib.loads(f"value = {value}")["value"] for key, value in pairs}
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{config!r} cannot be read ({error}): are texts in double quotes?") from error


def _has_flower() -> bool:
    from importlib.util import find_spec

    return find_spec("flwr") is not None


for command in (flower_certs.certs, flower_gate.gate, export.export):
    app.command()(command)
