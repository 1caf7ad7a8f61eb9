"""Methods of the user's own, named as ``module:Class`` on the command line and in study files.

A module is imported only where the user names it: planning a study, loading a run and resuming one from its folder import none.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fedfew.util.imports import find_function

if TYPE_CHECKING:
    from fedfew.methods import Method


def is_own(name: str) -> bool:
    return ":" in name


def import_method(name: str) -> type[Method]:
    """Import the class that ``module:Class`` names and register it, under this name and under its own."""
    from fedfew.methods import METHODS, Method, register

    base, _, given = name.partition(":")
    if base in METHODS and not given.isidentifier():
        raise ValueError(
            f"method is {name!r}, but hyperparameters do not follow the name here: give flags (--method {base} --mu 0.1), or in "
            f"a file method: {{name: {base}, mu: 0.1}}"
        )
    found: Any = find_function(name, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ValueError(f"method is {name!r}, which must be a subclass of fedfew.methods.Method (docs/write-your-own-method.md)")
    if inspect.isabstract(found):
        raise ValueError(f"method is {name!r}, which does not define {', '.join(sorted(found.__abstractmethods__))}")
    METHODS[name] = register(found)
    return found


class NotImported:
    """Stands for the method of a run that was made with a class of the user's own, until it is imported."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise ValueError(
            f"the run was made with the method {self.name!r}, which is not one of fedfew's own: import it and register it "
            "(fedfew.methods.register) before fedfew.load; on the command line --method module:Class"
        )
