"""An export: K models and a card that describes them, in one folder that can be verified and loaded without the run.

    models/model-0.safetensors …   one plain state dict per model
    data.json                      class names and preprocessing: what turns raw data into inputs, and outputs into names
    clients.safetensors            the model or mixture of each client, and its label prior
    card.json                      settings, clients, scores, and the hash of every other file
    README.md                      the same for people

The folder is filled under another name and renamed when complete. It holds no samples. An anonymous export has no
clients.safetensors, and neither names of clients nor their means and standard deviations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfew._version import __version__
from fedfew.adapters import TrainedPart
from fedfew.data import tensorfile
from fedfew.data.table_preprocessing import TablePreprocessing
from fedfew.data.tokens import Tokens
from fedfew.evaluation.metrics import summarise
from fedfew.export import model_card, model_file
from fedfew.export.in_torch import in_torch
from fedfew.export.reading import CARD, CLIENTS, DATA, FORMAT, README, is_export
from fedfew.methods import METHODS, Method
from fedfew.stack import leaves, tensor
from fedfew.training import privacy
from fedfew.training.data_record import DataRecord
from fedfew.training.run import Run
from fedfew.util.files import folder_written_atomically, sha256_of

DISTIL = "--distil (fedfew.export.write_distilled), which makes one model per client"  # of classes alone
_NOT_ON_THE_CARD = {"federation", "method", "model", "fedfew", "torch", "engine", "chunk"}  # elsewhere, or without effect


def write(
    run: Run, folder: str | Path, *, about: Mapping[str, Any] | None = None, force: bool = False, anonymous: bool = False
) -> Path:
    """Write the server's models and their card to a folder that is not there yet.

    about: what else is known of the clients' data: ``train``, the number of training samples of each; ``pixels`` and ``dtype``,
    what stored samples become on their way into a model, and their type. force: replace an export that is there already.
    anonymous: leave out what is known of single clients: names, models in use, label frequencies, means and standard deviations.
    """
    return write_as(WholeModels(), run, folder, about or {}, force, anonymous)


class WholeModels:
    """How models are written: one plain state dict each."""

    def file(self, k: int) -> str:
        return f"models/model-{k}.safetensors"

    def modules(self, run: Run) -> Sequence[nn.Module]:
        return run.models

    def served(self, run: Run) -> dict[str, Tensor]:
        """What each client uses of these models; empty where that is not known, or where clients have models of their own."""
        return _served(run)

    def about(self, modules: Sequence[nn.Module]) -> dict[str, Any]:
        """Further entries of the card."""
        return {}

    def about_model(self, k: int) -> dict[str, Any]:
        """Further entries of the card about one model."""
        return {}

    def write(self, place: Path, k: int, module: nn.Module, card: Mapping[str, Any]) -> None:
        model_file.write(place / self.file(k), module, {"model": card["model"], "number": k})

    def write_routes(self, place: Path, run: Run, served: Mapping[str, Tensor]) -> None:
        """What others than fedfew need to know of the clients."""


def write_as(kind: WholeModels, run: Run, folder: str | Path, about: Mapping[str, Any], force: bool, anonymous: bool) -> Path:
    """The export of a run, its models written in this way."""
    place, modules = Path(folder), kind.modules(run)
    if not modules:
        check_one_model_each(run)
        there = "each site has saved the one that it uses (model.safetensors)"
        personal = "--personal (fedfew.export.write_personal) writes the model of each client"
        raise ValueError(
            f"{run.settings['method']['name']} keeps no whole models on the server, so there are none to export; "
            f"{there if run.kept_at_sites else personal}"
        )
    _check_free(place, force)
    used = kind.served(run)
    data, served = (anonymised(run.data), {}) if anonymous else (run.data, used)
    choice = used.get("choice", run.choice if run.serves_server_models and run.has_choice else None)
    card = _card(run, modules, about, data, served, choice) | kind.about(modules)
    with folder_written_atomically(place) as partial:
        for k, (module, row) in enumerate(zip(modules, card["models"], strict=True)):
            row |= kind.about_model(k)
            kind.write(partial, k, module, card)
            row["file"] = kind.file(k)
            row["sha256"] = sha256_of(partial / row["file"])
        (partial / DATA).write_text(json.dumps(data.document, ensure_ascii=False) + "\n", encoding="utf-8")
        if served:
            tensorfile.write(partial / CLIENTS, served, {"kind": "clients of an export"})
            kind.write_routes(partial, run, served)
        (partial / README).write_text(model_card.text(card), encoding="utf-8")
        names = sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file())
        card["files"] = {name: sha256_of(partial / name) for name in names}
        (partial / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return place


def check_one_model_each(run: Run) -> None:
    """Refuse a run whose clients do not predict with one model, or with models of the server's."""
    name = run.settings["method"]["name"]
    if name in METHODS and METHODS[name].around is not Method.around:
        where = "at its site" if run.kept_at_sites else "from the run"
        raise ValueError(f"clients of {name} predict with more than a model, which an export cannot hold: predict {where}")
    if run.state.mixture is not None and run.state.mixture.shape[1] > 1 and not run.serves_server_models:
        advice = f"export with {DISTIL}, or " if run.task.name == "classification" else ""
        raise ValueError(f"clients predict with mixtures of models of their own: {advice}predict from the run")


def anonymised(data: DataRecord) -> DataRecord:
    """Without what is known of single clients."""
    fitted = data.preprocessing
    return replace(
        data, client_names=(), preprocessing=replace(fitted, clients=()) if isinstance(fitted, TablePreprocessing) else fitted
    )


def _served(run: Run) -> dict[str, Tensor]:
    """What each client uses of the server's models."""
    models = run.method.server_models(run.state.served)
    if not (run.serves_server_models and run.has_choice) or run.kept_by_sites(len(leaves(models)[0])):
        return {}
    state = run.state
    served = {"choice": run.choice.long()}
    if state.mixture is not None and state.mixture.shape[1] > 1:
        served["mixture"] = state.mixture
    if state.priors:
        served["log_prior"] = tensor(state.priors, "log_prior")
    return served


def sha256_of_card(folder: Path) -> str:
    """To be passed on separately from the export: who alters a file would have to alter this as well."""
    return sha256_of(folder / CARD)


def _card(
    run: Run,
    modules: Sequence[nn.Module],
    about: Mapping[str, Any],
    record: DataRecord,
    served: Mapping[str, Tensor],
    chosen: Tensor | None,
) -> dict[str, Any]:
    settings, data = run.settings, run.settings["federation"]
    shared = run.serves_server_models
    choice = None if chosen is None else chosen.tolist()

    def users(k: int) -> dict[str, Any]:
        if choice is None:
            return {"clients": None}
        names = [record.client_names[i] for i, model in enumerate(choice) if model == k] if record.client_names else []
        return {"clients": choice.count(k)} | ({"client_names": names} if names else {})

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
            **({"tokenizer": fitted.about} if isinstance(fitted := record.preprocessing, Tokens) else {}),
        },
        "privacy": privacy.guarantee(run),
        "scores": _scores(run),
        "scores_are_of_these_models": shared,
        "mixes": run.mixes,
        "kept_at_sites": run.kept_at_sites,
        "parameters": sum(p.numel() for p in modules[0].parameters()),
        "in_torch": in_torch(modules[0]),
        "of_single_clients": sorted(served) + ([] if not record.client_names else ["names"]) + _own_statistics(record),
        "models": [users(k) for k in range(len(modules))],
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
        "task": run.task.name,
        "vocabulary": data.get("vocabulary"),
        **({"padding": data["padding"]} if "padding" in data else {}),
        "batch_norm": run.settings.get("batch_norm", "average"),
        "pixels": about.get("pixels") or data.get("pixels", "symmetric"),
        "dtype": about.get("dtype") or data.get("dtype"),
        **TrainedPart.recorded(run.settings).document(),
        **({"class_names": names} if (names := list(run.data.class_names or about.get("class_names", ()))) else {}),
    }


def _own_statistics(record: DataRecord) -> list[str]:
    fitted = record.preprocessing
    return ["means and standard deviations"] if isinstance(fitted, TablePreprocessing) and fitted.clients else []


def _scores(run: Run) -> dict[str, Any]:
    """Test scores (accuracy, R², …) over clients in the last scored round; empty for a run that was stopped before."""
    if not len(run.history):
        return {}
    kept = ("clients", "mean", "std", "min", "max")
    scores: dict[str, Any] = {"round": int(run.scored("round"))}
    for score in ("served", "adapted"):
        summary = asdict(summarise(run.scores(score)))
        finite = {name: summary[name] if math.isfinite(summary[name]) else None for name in kept}  # JSON has no other numbers
        scores[score] = finite if summary["clients"] else None
    return scores


def _counts(samples: Sequence[int] | None) -> dict[str, int] | None:
    """Of the clients' numbers of samples no more than this leaves; None where they are not known of all."""
    return None if not samples or 0 in samples else {"total": sum(samples), "smallest": min(samples), "largest": max(samples)}


def _check_free(place: Path, force: bool) -> None:
    if place.is_dir() and not any(place.iterdir()):
        return
    if place.exists() and not (is_export(place) and force):
        hint = "replace it (--force, force=True), or choose another folder" if is_export(place) else "choose another folder"
        raise ValueError(f"{place} already {'holds an export' if is_export(place) else 'exists and is no export'}: {hint}")
