"""The content address of a run: a hash of all that decides its outcome.

That is its settings, its data and :data:`OUTCOME_VERSION`, which identifies the code that trains. How a run is computed is not
part of it: engine (they agree to float tolerance), chunk, checkpoints, the folder of the data. A setting that has its default
value is left out, so that a new setting does not change the keys of runs made before it existed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from fedfew.methods import Method
from fedfew.studies.module_lookup import source_file
from fedfew.studies.tuning import SHARE
from fedfew.training.from_settings import make_method
from fedfew.training.own_method import is_own
from fedfew.training.settings import Settings
from fedfew.util.files import sha256_of

OUTCOME_VERSION = 10
"""Raise it when the same settings give other results than before: every cached run is then made again.

``tests/studies/test_outcomes.py`` compares short runs with the outcomes recorded for this version, and fails when they differ.
"""
LENGTH = 20  # hexadecimal digits kept: 80 bits
NOT_OF_THE_OUTCOME = {f.name for f in fields(Settings) if not f.metadata.get("outcome")}  # the method's settings count below


def run_key(settings: Settings, candidates: Sequence[Settings] = ()) -> str:
    """The key of a run with these settings; of a tuned one, of the settings that it chooses among."""
    chosen_among = {"tuned": [identity(c) for c in candidates], "held_out_of_training": SHARE} if candidates else {}
    return _hash(identity(settings) | chosen_among)[:LENGTH]


def identity(settings: Settings) -> dict[str, Any]:
    """All that decides a run's outcome, as plain values."""
    defaults = vars(Settings())
    values = {n: v for n, v in vars(settings).items() if n not in NOT_OF_THE_OUTCOME and v != defaults[n]}
    device = _device_class(settings.device)
    return values | {
        "outcome_version": OUTCOME_VERSION,
        "method": _own(settings) if is_own(settings.method) else _method(make_method(settings)),
        "device": device,
        "precision": settings.precision if device == "cuda" else None,  # of no effect elsewhere
        "files": _files(settings.dataset, settings.data_dir),
        **_decoding(settings.dataset),
        "factory": _source(settings.model),
        **({"loss_source": _source(settings.loss)} if ":" in settings.loss else {}),
        **({"tokenizer_files": _tokenizer(settings.tokenizer)} if settings.tokenizer else {}),
    }


def _method(method: Method) -> dict[str, Any]:
    """Its name and the hyperparameters that differ from their defaults, however they were given."""
    defaults = type(method)().settings()
    return {name: value for name, value in method.settings().items() if name == "name" or value != defaults[name]}


def _device_class(name: str) -> str:
    from fedfew.util.devices import device_named

    return device_named(name).type


@cache
def _files(dataset: str, data_dir: str | None) -> list[list[Any]] | None:
    """Names and sizes of a data set's files, and of a user's own files their times of change as well; None: not here."""
    from fedfew.data.finding import data_folder
    from fedfew.data.sources import SOURCES

    own = Path(dataset).expanduser()
    source = SOURCES.get(dataset)
    if source is None:
        listed = [own] if own.is_file() else sorted(p for p in own.rglob("*") if p.is_file()) if own.is_dir() else []
        root = own if own.is_dir() else own.parent  # folders are classes or clients
        return [[p.relative_to(root).as_posix(), p.stat().st_size, p.stat().st_mtime_ns] for p in listed] or None
    try:
        folder = data_folder(data_dir)
    except ValueError:
        return None
    for place in [] if folder is None else [folder / name for name in source.folder_names]:
        found = sorted(p for p in place.rglob("*") if p.is_file() and not p.name.startswith(".")) if place.is_dir() else []
        if found:
            return [[p.relative_to(place).as_posix(), p.stat().st_size] for p in found]
    return None


def _decoding(dataset: str) -> dict[str, Any]:
    """Of a user's own files: the version of what makes samples and clients of them."""
    from fedfew.data import names
    from fedfew.data.cache import FORMAT

    return {"decoding": FORMAT} if dataset not in names() and Path(dataset).expanduser().exists() else {}


@cache
def _tokenizer(name: str) -> str | None:
    """A hash of a tokeniser's file, or of the files in its folder; None for a name on the hub."""
    own = Path(name).expanduser()
    if own.is_file():
        return sha256_of(own)
    if not own.is_dir():
        return None
    return _hash({file.name: sha256_of(file) for file in sorted(own.iterdir()) if file.is_file()})


def _own(settings: Settings) -> dict[str, Any]:
    """Of a method of the user's own: its name, what is given of its hyperparameters, and the source, which is not imported.

    Where the source changes, runs are made again. Defaults are part of the source.
    """
    given = {name: _number(value) for name, value in settings.method_settings.items()}
    return given | {"name": settings.method, "source": _source(settings.method)}


def _number(value: Any) -> Any:
    """1 and 1.0 are the same, whatever type the class declares."""
    if isinstance(value, list | tuple):
        return [_number(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@cache
def _source(named: str) -> str | None:
    """Of ``module:name``, a hash of the module's source file, which is not imported; None where there is none."""
    module, colon, _ = named.partition(":")
    file = source_file(module) if colon else None
    return None if file is None else sha256_of(file)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
