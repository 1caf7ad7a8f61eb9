"""``fedfew export``, which is ``fedfew flower export`` as well."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedfew.cli import errors, flags, places, runfolder
from fedfew.cli.show import OwnMethod, OwnModel, RunFolder, load
from fedfew.util.files import check_writable
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.federation import Federation


@errors.readable
def export(
    folder: RunFolder,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to create.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing export.")] = False,
    anonymous: Annotated[
        bool,
        typer.Option(
            "--anonymous", help="Leave out what is known of single clients: names, models in use, label frequencies, means."
        ),
    ] = False,
    peft: Annotated[
        str | None,
        typer.Option(
            metavar="BASE",
            help="Of a run with adapters: write these alone, as folders that peft and vLLM load beside the base model. BASE: its "
            "name or folder.",
            show_default=False,
        ),
    ] = None,
    distil: Annotated[
        bool,
        typer.Option(
            "--distil",
            help="Of a run served as a mixture: one model per client, distilled from its mixture. Reads the run's data again.",
        ),
    ] = False,
    personal: Annotated[
        bool,
        typer.Option(
            "--personal", help="One model per client: the one that it uses, for methods whose clients have models of their own."
        ),
    ] = False,
    model: OwnModel = None,
    method: OwnMethod = None,
    json: flags.Json = False,
) -> None:
    """Export a run's models: safetensors files, and a model card with settings, scores and hashes.

    The folder holds models/model-0.safetensors and so on, the preprocessing of raw data, card.json, and README.md, the model card
    in prose. It holds no samples. 'fedfew predict' predicts with it, 'fedfew select' chooses the model that fits new data. With
    --peft the models are adapter-0/adapter_model.safetensors and so on, and --model gives the base model to these commands. With
    --distil there is one model per client, and the card has its test accuracy beside that of the mixture. With --personal there
    is one model per client as well: the one that was scored.

    Example: [cyan]fedfew export runs/digits-fedfew-0 -o digits-models[/cyan]
    """
    from fedfew import export as exports
    from fedfew.export import model_card
    from fedfew.report import tables

    check_writable(output, folder=True)
    run, about = load(folder, model, method), runfolder.about_data(folder)
    if distil or personal:
        if anonymous or peft is not None or (distil and personal):
            flag, other = ("--distil", "--personal") if distil else ("--personal", "--distil")
            raise ValueError(f"{flag} writes a model per client: it cannot be combined with --anonymous, --peft or {other}")
        if personal:
            place = exports.write_personal(run, output, about=about, force=force)
        else:
            place = exports.write_distilled(run, _data_of(folder), output, about=about, force=force)
    else:
        write = exports.write if peft is None else partial(exports.write_adapters, base=peft)
        place = write(run, output, about=about, force=force, anonymous=anonymous)
    sha256, models = exports.sha256_of_card(place), [place / row["file"] for row in exports.read_card(place)["models"]]
    size = sum(path.stat().st_size for path in models)
    if json:
        tables.print_json({"folder": str(place), "models": len(models), "bytes": size, "card_sha256": sha256})
        return
    console = Console(highlight=False, soft_wrap=True)
    what = counted(len(models), "model" if peft is None else "adapter")
    console.print(f"{what}, {size / 1e6:.3g} MB, and their card: [bold]{places.shown(place)}[/bold]")
    if reason := exports.read_card(place).get("adapters", {}).get("not_on_vllm"):
        console.print(f"vLLM does not take these adapters: {places.shown(reason)}.")
    if found := exports.read_card(place).get("distilled"):
        accuracies = f"{found['accuracy']:.1%}, that of the mixtures {found['mixture_accuracy']:.1%}"
        console.print(f"One model per client, distilled from its mixture: mean test accuracy {accuracies}.")
    if of_clients := [model_card.OF_SINGLE_CLIENTS[name] for name in exports.read_card(place)["of_single_clients"]]:
        without = "" if distil or personal else " (--anonymous leaves them out)"
        console.print(f"It holds of single clients: {', '.join(of_clients)}{without}.")
    console.print(f"SHA-256 of card.json, to be sent to recipients through another channel: {sha256}")


def _data_of(folder: Path) -> Federation:
    """The federation of a run, loaded again by its configuration."""
    from fedfew.training.from_settings import make_federation
    from fedfew.training.resolve import read_file, resolve

    if not (folder / runfolder.CONFIG).exists():
        raise ValueError(
            f"{folder} has no {runfolder.CONFIG}, which names the data of a run: use fedfew.export.write_distilled in Python"
        )
    return make_federation(resolve({}, {}, read_file(folder / runfolder.CONFIG)))[0]
