"""``fedfew watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfew.cli import errors, places
from fedfew.studies.folder import is_study

EXAMPLES = """[bold]Examples[/bold]

[cyan]fedfew run --folder runs/mine[/cyan]   in one terminal
[cyan]fedfew watch runs/mine --open[/cyan]   in another, before or after
[cyan]fedfew watch runs/mine --port 0[/cyan]   on any free port
[cyan]ssh -L 8765:localhost:8765 server[/cyan]   then the page of a run on that server is at http://localhost:8765
"""
DEFAULT_PORT = 8765


@errors.readable
def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run; it need not be there yet.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine; 0: any that is free.")] = DEFAULT_PORT,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """The page of a run while it is training; it updates by itself.

    It is served to this machine alone, at http://localhost:PORT, until Ctrl-C. How far the run is shows at once; charts follow
    its checkpoints (--checkpoint-every of 'fedfew run').
    """
    from fedfew.report.page.server import Watched, serving

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give the folder of a run")
    if is_study(folder):
        raise ValueError(
            f"{folder} is a study: 'fedfew report {places.argument(folder)}' makes its page; what can be watched is a run"
        )
    console = Console(highlight=False, soft_wrap=True)
    with serving(Watched(folder), port) as server:
        console.print(f"{places.shown(folder)} is shown at [bold]{server.address}[/bold] (Ctrl-C ends this, not the run)")
        if open_it:
            typer.launch(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("Ended.")
