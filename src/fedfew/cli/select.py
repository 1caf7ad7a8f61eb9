"""``fedfew select``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedfew.cli import errors, flags, runfolder
from fedfew.cli.show import OwnModel, RunFolder, load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedfew.run import Run


def add_to(app: typer.Typer) -> None:
    app.command(help=flags.flowing(select.__doc__))(select)


@errors.readable
def select(
    folder: RunFolder,
    data: Annotated[Path, typer.Option(help="A .npz file with the arrays x (samples) and y (labels).")],
    model: OwnModel = None,
    json: flags.Json = False,
) -> None:
    """Which of a run's models fits new data best: how a client that never took part chooses.

    Example: [cyan]fedfew select runs/digits-fedfew-0 --data mine.npz[/cyan]
    """
    from fedfew.report import tables
    from fedfew.run import fit

    run = load(folder, model)
    x, y = _read(data, run)
    pixels = runfolder.about_data(folder).get("pixels", "symmetric")
    if not run.models:
        raise ValueError(f"{run.settings['method']['name']} keeps no models on the server, so there are none to choose from")
    fits = fit(run.models, x, y, pixels=pixels)
    best = min(range(len(fits)), key=lambda k: fits[k].loss)
    if json:
        tables.print_json({"model": best, "samples": len(y), "models": [asdict(one) for one in fits]})
        return
    table = tables.empty(f"{len(y)} samples", "model", "mean loss", "accuracy, %")
    for k, one in enumerate(fits):
        mark = "[bold]{}[/bold]" if k == best else "{}"
        table.add_row(*(mark.format(text) for text in (str(k), f"{one.loss:.4f}", tables.percent(one.accuracy))))
    console = Console()
    console.print(table)
    console.print(f"Model {best} fits best.", highlight=False)


def _read(path: Path, run: Run) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The samples in a file, checked against what the run was trained on."""
    import numpy as np

    try:
        arrays = np.load(path, allow_pickle=False)
        x, y = arrays["x"], arrays["y"]
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (KeyError, IndexError, ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} must be a .npz file with the arrays x and y ({error})") from error
    shape, classes = tuple(run.settings["federation"]["shape"]), run.settings["federation"]["classes"]
    if x.ndim == 0 or x.shape[1:] != shape or len(x) == 0 or y.shape != (len(x),):
        raise ValueError(
            f"{path}: x must be samples of shape {list(shape)}, one row each, and y their labels; "
            f"they are {list(x.shape)} and {list(y.shape)}"
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= classes:
        raise ValueError(f"{path}: y must be whole numbers from 0 to {classes - 1}")
    return x, y.astype(np.int64)
