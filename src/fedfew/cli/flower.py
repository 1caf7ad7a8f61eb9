"""``fedfew flower``: an app to start from, a site's data tried out, and what else a federation on a network needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedfew.cli import errors, export, flags, flower_certs, flower_gate

app = typer.Typer(help="Federations on a network, with Flower: init, check, certs, gate, export.", no_args_is_help=True)


@app.command()
@errors.readable
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write the app to; it must not be there yet, or be empty.")],
    json: flags.Json = False,
) -> None:
    """Write a Flower app to start from: its settings, the server's and the sites' side.

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
    console.print(f"\nTry it: flwr run {folder} local --stream --federation-config num-supernodes=4 (needs fedfew[simulation])")
    if not _has_flower():
        console.print("Flower is not installed here yet: pip install 'fedfew[flower]'", style="yellow")


@app.command()
@errors.readable
def check(
    config: Annotated[str, typer.Argument(metavar="NODE_CONFIG", help="What --node-config of flower-supernode will be.")],
    json: flags.Json = False,
) -> None:
    """Try out a site's configuration: load its data and say what the server would learn when the site joins.

    Nothing is sent anywhere.

    Example: [cyan]fedfew flower check 'client=0 data="mine.npz" classes=10'[/cyan]
    """
    try:
        from fedfew.flower import site_data
        from fedfew.flower.messages import JOIN, Letter
        from fedfew.flower.site import Site
    except ModuleNotFoundError as error:
        raise ImportError(f"there is no {error.name} here, which a site needs: pip install 'fedfew[flower]'") from error
    from fedfew.report import tables

    site = Site(site_data.SiteConfig.read(parse(config), {}), "mlp")
    site_data.load(site.config)  # once more by itself: its errors are for the site's own eyes
    told = site.answer(Letter(JOIN)).values
    if json:
        tables.print_json({"told": told, "state": str(site.folder)})
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print("When it joins, the server learns:")
    for name, value in told.items():
        console.print(f"  {name:<13} {value}")
    console.print(f"The site keeps its state and its logs in {site.folder}.")


def parse(config: str) -> dict[str, Any]:
    """key=value pairs separated by spaces, as Flower reads them: TOML values."""
    import re
    import tomllib

    pairs = re.findall(r"""([\w.-]+)\s*=\s*("[^"]*"|'[^']*'|\S+)""", config)
    if not pairs or re.sub(r"""([\w.-]+)\s*=\s*("[^"]*"|'[^']*'|\S+)""", "", config).strip():
        raise ValueError(f"a node's configuration is key=value pairs separated by spaces, texts in quotes, not {config!r}")
    try:
        return {key: tomllib.loads(f"value = {value}")["value"] for key, value in pairs}
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{config!r} cannot be read ({error}): are texts in double quotes?") from error


def _has_flower() -> bool:
    from importlib.util import find_spec

    return find_spec("flwr") is not None


flower_certs.add_to(app)
flower_gate.add_to(app)
export.add_to(app)
