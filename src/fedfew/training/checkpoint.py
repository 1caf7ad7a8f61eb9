"""States written down: a folder of ``round-NNNNNN`` folders, each whole or not there at all.

``state.safetensors`` holds every tensor (server, clients' own, history), ``state.json`` the settings and the hash of the former;
nothing is pickled. A folder is filled under another name and renamed when complete, so a killed process leaves no half
of one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedfew import methods
from fedfew.config import defaults
from fedfew.stack import Tree, branch, from_named, named_leaves, to, tree_map
from fedfew.training.data_record import DataRecord
from fedfew.training.history import History
from fedfew.util.files import folder_written_atomically, remove_unfinished, write_atomically

FORMAT = 2
TREES = ("server", "own", "frozen", "moments", "average", "priors", "best")  # of a state
KEPT = 2  # the newest, and one to fall back on


@dataclass
class State:
    """The complete state of a run after a round."""

    round: int
    server: Tree
    own: Tree
    history: History
    settings: dict[str, Any]
    events: list[str] = field(default_factory=list)
    frozen: Tree = field(default_factory=dict)  # parameters that are not trained, the same for all models
    choice: Tensor | None = None  # [M]: which of the models served now each client uses; None: not known
    mixture: Tensor | None = None  # [M, S]: the weights of these models, where clients use a mixture
    left_out: int = 0  # clients left out since the last scored round
    median_loss: float | None = None  # over clients, of the least loss that each reported in the last round; None: not known
    confirmed: float = 1.0  # what differences between losses are multiplied by in the next round (fedfew.methods.confirmation)
    unused: tuple[int, ...] = ()  # rounds for which no client has used each model, if counted
    moments: Tree = field(default_factory=dict)  # of the server optimiser
    average: Tree = field(default_factory=dict)  # of the server's states over rounds, where that is what is served
    priors: Tree = field(default_factory=dict)  # log_prior [M, classes], where clients add one; on a network it stays with them
    best: Tree = field(default_factory=dict)  # with keep="best": round, server, own, choice and mixture of the best round so far
    sites: dict[str, Any] = field(default_factory=dict)  # of a run on a network: what the server knows of each site
    data: DataRecord = field(default_factory=DataRecord)  # names of clients and classes, preprocessing

    @property
    def served(self) -> Tree:
        """The server's state that clients are served from."""
        return self.average or self.server

    def remember_as_best(self) -> None:
        """Keep what is served now, whatever later rounds bring."""
        parts: Tree = {"round": torch.tensor(self.round), "server": self.served, "own": self.own}
        parts |= {name: value for name in ("choice", "mixture") if (value := getattr(self, name)) is not None}
        self.best = tree_map(torch.clone, parts)

    def in_use(self) -> State:
        """The state whose models clients use: with keep="best" that of the best round, else the newest."""
        if not self.best:
            return self
        choice, mixture = (self.best.get(name) for name in ("choice", "mixture"))
        chosen: dict[str, Any] = {"choice": choice, "mixture": mixture}
        return replace(self, server=branch(self.best, "server"), own=branch(self.best, "own"), average={}, moments={}, **chosen)

    def on(self, device: torch.device | str) -> State:
        """The same with all trees on a device."""
        moved: dict[str, Any] = {name: to(getattr(self, name), device) for name in TREES}
        return replace(self, **moved)


class CheckpointError(ValueError):
    """No checkpoint here that can be used, and why."""


def write(folder: Path, state: State) -> Path:
    """Write a checkpoint, atomically, and drop all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {path: t.detach().cpu().contiguous() for path, t in named_leaves({name: getattr(state, name) for name in TREES})}
    for name, column in state.history.arrays().items():
        tensors[f"history/{name}"] = torch.from_numpy(np.ascontiguousarray(column))
    for name in ("choice", "mixture"):
        if (value := getattr(state, name)) is not None:
            tensors[name] = value.contiguous()
    data = save_tensors(tensors)
    about: dict[str, Any] = {
        "format": FORMAT,
        "round": state.round,
        "settings": state.settings,
        "events": state.events,
        "left_out": state.left_out,
        "median_loss": state.median_loss,
        "confirmed": state.confirmed,
        "unused": list(state.unused),
        "sites": state.sites,
        "data": state.data.document,
        "names": list(tensors),  # safetensors sorts them, but a state read back adds up in the order of the one written
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    about["own_sha256"] = _own_sha256(json.loads(json.dumps(about)))  # of what will be read back
    final = folder / f"round-{state.round:06d}"
    with folder_written_atomically(final) as partial:
        write_atomically(partial / "state.safetensors", data)
        write_atomically(partial / "state.json", json.dumps(about, indent=1))
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)
    remove_unfinished(folder)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    found = (p for p in folder.glob("round-*") if re.fullmatch(r"round-\d{6,}", p.name) and not p.is_symlink())
    return sorted(found, key=lambda p: int(p.name.removeprefix("round-")))


def read_newest(folder: Path, expected: dict[str, Any] | None = None) -> tuple[State, list[str]]:
    """The newest usable checkpoint of a folder, and why newer ones, if any, were refused.

    expected: settings that a checkpoint must have been made with.
    """
    found = checkpoints(folder)
    if not found:
        raise CheckpointError(f"there is no checkpoint in {folder}{'' if folder.is_dir() else ', which does not exist'}")
    refused: list[str] = []
    for path in reversed(found):
        try:
            state = read(path)
            if expected is not None:
                _compare(path, state.settings, expected)
            return state, refused
        except CheckpointError as error:
            refused.append(str(error))
    raise CheckpointError(f"no checkpoint in {folder} can be used: {'; '.join(refused)}")


def read(path: Path) -> State:
    try:
        about = json.loads((path / "state.json").read_text())
        data = (path / "state.safetensors").read_bytes()
        check_head(about, path.name)
        if hashlib.sha256(data).hexdigest() != about["sha256"]:
            raise CheckpointError(f"{path.name} is damaged (its hash does not fit its contents)")
        tensors = load_tensors(data)
        tree = from_named({name: tensors[name] for name in about["names"]})
        history = {name: t.numpy() for name, t in named_leaves(branch(tree, "history"))}
        return State(
            round=about["round"],
            **{name: branch(tree, name) for name in TREES},
            history=History.from_arrays(history),
            settings=about["settings"],
            events=about["events"],
            left_out=about["left_out"],
            median_loss=about["median_loss"],
            confirmed=about["confirmed"],
            unused=tuple(about["unused"]),
            choice=tensors.get("choice"),
            mixture=tensors.get("mixture"),
            sites=about["sites"],
            data=DataRecord.from_document(about["data"]),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path.name} is damaged ({type(error).__name__}: {error})") from error


def newest_settings(folder: Path) -> dict[str, Any]:
    """The settings in the newest intact ``state.json``, without its tensors; empty where there is none."""
    for path in reversed(checkpoints(folder)):
        try:
            about: dict[str, Any] = json.loads((path / "state.json").read_text())
            check_head(about, path.name)
            settings: dict[str, Any] = about["settings"]
            return settings
        except (OSError, ValueError, KeyError, TypeError):  # the one before may do
            continue
    return {}


def check_head(about: dict[str, Any], name: str) -> None:
    """Refuse the contents of a ``state.json`` that this version cannot read or that are not as they were written."""
    if about["format"] != FORMAT:
        raise CheckpointError(f"{name} has format {about['format']}, this version reads {FORMAT}")
    if about["own_sha256"] != _own_sha256(about):
        raise CheckpointError(f"{name} is damaged (state.json is not as it was written)")


def _own_sha256(about: dict[str, Any]) -> str:
    """A hash of all values in state.json but the hash itself."""
    rest = {key: value for key, value in about.items() if key != "own_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _compare(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    recorded = (
        defaults() | found | {"method": methods.recorded(found.get("method", {}))}
    )  # a setting that is younger than the checkpoint had its default's effect
    for name, value in expected.items():
        if name == "federation" and (found.get(name) or {}).get("fingerprint") == value["fingerprint"]:
            continue  # the same samples, whatever else was noted about them then
        if name == "federation" and isinstance(there := found.get(name), dict):
            differs = ", ".join(key for key in value if there.get(key) != value[key])
            raise CheckpointError(
                f"{path.name} belongs to another run: its data differ in {differs} (fingerprint: a hash of all samples)"
            )
        if recorded.get(name) != value:
            raise CheckpointError(
                f"{path.name} belongs to another run: its {name} is {_short(recorded.get(name))}, not {_short(value)}"
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"
