"""Modules of the user's own that a study names, found without importing them: planning must not run code that a file names."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def find_module(name: str) -> ModuleSpec | None:
    """Where a module would be imported from: the working folder first, then the Python path; None where it is not found."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    spec = PathFinder.find_spec(parts[0], [os.getcwd()]) or _find(parts[0], None)
    for end in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = _find(".".join(parts[:end]), list(spec.submodule_search_locations))
    return spec


def _find(name: str, folders: list[str] | None) -> ModuleSpec | None:
    # importlib.util.find_spec would import the packages above a module.
    return next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, folders)) is not None), None)


def source_file(name: str) -> Path | None:
    """The source file of a module; None where it has none, as one that is compiled."""
    spec = find_module(name)
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.origin.endswith(".py") else None


def check_named(value: str, setting: str) -> None:
    """Raise ValueError unless the module of ``module:attribute`` can be found."""
    module, _, attribute = value.partition(":")
    if not (module and attribute):
        raise ValueError(f"{setting} is {value!r}, but must be module:name")
    if find_module(module) is None:
        raise ValueError(f"{setting} is {value!r}, but the module {module} cannot be found, neither here nor on the Python path")
