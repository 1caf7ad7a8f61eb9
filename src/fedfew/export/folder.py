"""What remains after training: K models and a card that says what they are, in one folder anybody can check and load.

    models/model-0.safetensors …   one plain state dict a model
    card.json                      settings, clients, scores, and the hash of every other file
    README.md                      the same for people

The folder is filled under another name and renamed when complete. It holds no samples, and of the clients' data only counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedfew._version import __version__
from fedfew.evaluation.metrics import summarise
from fedfew.export import model_card, model_file
from fedfew.models import ModelFactory
from fedfew.stack import leaves, take
from fedfew.training.run import Run
from fedfew.util.files import folder_written_atomically

FORMAT = 1
CARD, README = "card.json", "README.md"
_NOT_ON_THE_CARD = {"federation", "method", "model", "fedfew", "torch", "engine", "chunk"}  # said elsewhere, or of no consequence


class ExportError(ValueError):
    """No export here that can be used, and why."""


@dataclass(frozen=True)
class Export:
    """An export read back, every file of it as it was written."""

    card: dict[str, Any]
    sha256: str  # of card.json, which vouches for all other files
    models: list[nn.Module]  # in evaluation mode


def write(run: Run, folder: str | Path, *, about: Mapping[str, Any] | None = None, force: bool = False) -> Path:
    """Write the server's models and their card to a folder that is not there yet.

    about: what else is known of the clients' data: ``train``, the number of training samples of each; ``pixels`` and ``dtype``,
    what stored samples become on their way into a model, and their type. force: replace an export that is there already.
    """
    place = Path(folder)
    modules = run.models
    if not modules:
        raise ValueError(f"{run.settings['method']['name']} keeps no models on the server, so there are none to export")
    _check_free(place, force)
    card = _card(run, modules, about or {})
    with folder_written_atomically(place) as partial:
        for k, module in enumerate(modules):
            model_file.write(partial / _file(k), module, {"model": card["model"], "number": k})
        for k, row in enumerate(card["models"]):
            row["sha256"] = _sha256(partial / _file(k))
        (partial / README).write_text(model_card.text(card), encoding="utf-8")
        card["files"] = {name: _sha256(partial / name) for name in [*map(_file, range(len(modules))), README]}
        (partial / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return place


def read(folder: str | Path, model: ModelFactory | None = None) -> Export:
    """The export in a folder; :class:`ExportError` names the file that is not as it was written.

    model: needed only where the models are modules of somebody's own: the same zero-argument callable.
    """
    place = Path(folder)
    card = _read_card(place)
    altered = [name for name, sha256 in card["files"].items() if not (place / name).is_file() or _sha256(place / name) != sha256]
    if altered:
        missing = [name for name in altered if not (place / name).is_file()]
        words = [f"{name} is {'missing' if name in missing else 'not as it was written (its hash differs)'}" for name in altered]
        raise ExportError(f"the export in {place} was altered: {'; '.join(words)}")
    modules = [model_file.load_model(place / row["file"], model) for row in card["models"]]
    return Export(card, _sha256(place / CARD), modules)


def is_export(folder: Path) -> bool:
    return (folder / CARD).is_file()


def sha256_of_card(folder: Path) -> str:
    """What to pass on by another way than the export itself: whoever alters a file would have to alter this, too."""
    return _sha256(folder / CARD)


def _card(run: Run, modules: Sequence[nn.Module], about: Mapping[str, Any]) -> dict[str, Any]:
    settings, data = run.settings, run.settings["federation"]
    shared = _clients_use_these(run)
    choice = run.choice.tolist() if shared and run.has_choice else None
    return {
        "format": FORMAT,
        "model": model_about(run, about),
        "method": settings["method"],
        "training": {name: value for name, value in settings.items() if name not in _NOT_ON_THE_CARD} | {"round": run.round},
        "data": {
            "name": data["name"],
            "clients": data["clients"],
            "train_samples": _counts(about.get("train")),
            "test_samples": _counts(data.get("test_samples")),
        },
        "scores": _scores(run),
        "scores_are_of_these_models": shared,
        "parameters": sum(p.numel() for p in modules[0].parameters()),
        "models": [{"file": _file(k), "clients": None if choice is None else choice.count(k)} for k in range(len(modules))],
        "versions": {
            "trained with": {"fedfew": settings.get("fedfew"), "torch": settings.get("torch")},
            "exported with": {"fedfew": __version__, "torch": torch.__version__},
        },
    }


def model_about(run: Run, about: Mapping[str, Any]) -> dict[str, Any]:
    """What must be known of the models to build them and to feed them; ``about`` as for :func:`write`."""
    data = run.settings["federation"]
    return {
        "name": run.settings["model"],
        "shape": data["shape"],
        "classes": data["classes"],
        "vocabulary": data.get("vocabulary"),
        "batch_norm": run.settings.get("batch_norm", "average"),
        "pixels": about.get("pixels") or data.get("pixels", "symmetric"),
        "dtype": about.get("dtype") or data.get("dtype"),
        **({"class_names": list(about["class_names"])} if about.get("class_names") else {}),
    }


def _clients_use_these(run: Run) -> bool:
    """Whether clients choose among the server's models; those of Ditto, APFL, … have models of their own."""
    first = torch.tensor([0])
    try:
        candidates = take(run.method.candidates(run.state.served, run.state.own, first), 0)
    except LookupError:  # of a run on a network the clients' own states are at home, and this method cannot serve without
        return False
    ours = run.method.server_models(run.state.server)
    return candidates.keys() == ours.keys() and all(map(torch.equal, leaves(candidates), leaves(ours)))


def _scores(run: Run) -> dict[str, Any]:
    """Test accuracy over clients in the last scored round; empty for a run that was stopped before."""
    if not len(run.history):
        return {}
    kept = ("clients", "mean", "std", "min", "max")
    scores: dict[str, Any] = {"round": int(run.history.last("round"))}
    for score in ("served", "adapted"):
        summary = asdict(summarise(run.history.last(f"{score}_accuracy")))
        scores[score] = {name: summary[name] for name in kept} if summary["clients"] else None
    return scores


def _counts(samples: Sequence[int] | None) -> dict[str, int] | None:
    """Of the clients' numbers of samples no more than this leaves; None where they are not known of all."""
    return None if not samples or 0 in samples else {"total": sum(samples), "smallest": min(samples), "largest": max(samples)}


def _file(k: int) -> str:
    return f"models/model-{k}.safetensors"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_card(place: Path) -> dict[str, Any]:
    try:
        card: dict[str, Any] = json.loads((place / CARD).read_text(encoding="utf-8"))
        if card["format"] != FORMAT:
            raise ExportError(f"the export in {place} has format {card['format']}, this version reads {FORMAT}")
        listed = {row["file"] for row in card["models"]}
        if not listed or not listed <= card["files"].keys():
            raise ExportError(f"{place / CARD} lists models without a hash")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in card["files"]):
            raise ExportError(f"{place / CARD} names a file outside of its folder")
    except FileNotFoundError:
        raise ExportError(f"there is no export in {place}: it has no {CARD}") from None
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ExportError(f"{place / CARD} is damaged ({type(error).__name__}: {error})") from error
    return card


def _check_free(place: Path, force: bool) -> None:
    if place.is_dir() and not any(place.iterdir()):
        return
    if place.exists() and not (is_export(place) and force):
        hint = "replace it (--force, force=True), or choose another folder" if is_export(place) else "choose another folder"
        raise ValueError(f"{place} already {'holds an export' if is_export(place) else 'exists and is no export'}: {hint}")
