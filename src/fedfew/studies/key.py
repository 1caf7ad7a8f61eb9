"""The content address of a run: a hash of all that decides its outcome.

That is its settings, its data and the code that trains. How it is computed is not part of it: engine (they agree to float
tolerance), chunk, checkpoints, the folder that the data lie in.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import json
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from fedfew.settings import Settings, find_model, make_method

FORMAT = 1  # of the keys themselves; raise it and every run is made anew
LENGTH = 20  # hexadecimal digits kept: 80 bits
NOT_OF_THE_OUTCOME = {"engine", "chunk", "checkpoint_every", "data_dir", "device", "method_settings"}
# What trains and scores, as files and folders of the package. A test holds this against what a run really imports.
CODE = (
    "aggregation.py",
    "compression.py",
    "counted.py",
    "data",
    "engines",
    "federation.py",
    "kernels",
    "methods",
    "metrics.py",
    "models",
    "normalisation.py",
    "rounds.py",
    "scalarization.py",
    "stack.py",
    "training.py",
)
# What a run imports but does not depend on: how states are written down, how errors are worded, who works where.
NOT_CODE = (
    "__init__.py",
    "_version.py",
    "checkpoint.py",
    "conversion.py",
    "costs.py",
    "distributed.py",
    "history.py",
    "interrupts.py",
    "knobs.py",
    "lock.py",
    "report",
    "run.py",
    "settings.py",
    "spelling.py",
    "studies",
)


def run_key(settings: Settings) -> str:
    """The key of a run with these settings, here and now."""
    return _hash(identity(settings))[:LENGTH]


def identity(settings: Settings) -> dict[str, Any]:
    """All that decides a run's outcome, as plain values."""
    values = {name: value for name, value in vars(settings).items() if name not in NOT_OF_THE_OUTCOME}
    device = _device_class(settings.device)
    return values | {
        "format": FORMAT,
        "code": code_version(),
        "method": make_method(settings).settings(),  # all hyper-parameters, however they were arrived at
        "device": device,
        "precision": settings.precision if device == "cuda" else None,  # of no effect elsewhere
        "files": _files(settings.dataset, settings.data_dir),
        "factory": _factory(settings.model),
    }


@cache
def code_version() -> str:
    """A hash of the code that trains, comments and docstrings left out."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for name in CODE:
        place = root / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{path.relative_to(root).as_posix()}\0{statements(path.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()[:12]


def statements(source: str) -> str:
    """Python source without comments, docstrings and empty lines: what is left when words alone are changed.

    Lines are kept as they are, so that the hash is the same for every version of Python.
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _device_class(name: str) -> str:
    from fedfew.training import device_named

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
        return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in listed] or None
    try:
        folder = data_folder(data_dir)
    except ValueError:
        return None
    for place in [] if folder is None else [folder / name for name in source.folder_names]:
        found = sorted(p for p in place.rglob("*") if p.is_file() and not p.name.startswith(".")) if place.is_dir() else []
        if found:
            return [[p.relative_to(place).as_posix(), p.stat().st_size] for p in found]
    return None


@cache
def _factory(model: str) -> str | None:
    """Of a module of the user's own, a hash of the file that it is made in."""
    factory = find_model(model)
    if isinstance(factory, str):
        return None
    try:
        return hashlib.sha256(Path(inspect.getfile(factory)).read_bytes()).hexdigest()
    except (TypeError, OSError):  # a callable without a file
        return None


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
