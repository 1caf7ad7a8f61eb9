"""The hyper-parameters of a method as its dataclass declares them: name, type, default, documentation."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from fedfew import methods
from fedfew.util.spelling import closest, unknown


@dataclass(frozen=True)
class Hyperparameter:
    """One hyper-parameter."""

    name: str
    hint: Any
    default: Any
    published: Any  # its value in the preset ``as_published``
    about: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


PUBLISHED = Hyperparameter("published", bool, False, True, "Start from the published code's values.")


def hyper_parameters(method: str) -> list[Hyperparameter]:
    """The hyperparameters of the method called ``method``, in its own order, and ``published`` last."""
    if method not in methods.METHODS:
        raise unknown("method", method, methods.METHODS)
    cls = methods.METHODS[method]
    hints, about = get_type_hints(cls), _field_docs(cls)
    as_published = cls.as_published()
    hyperparameters = [
        Hyperparameter(
            f.name,
            hints[f.name],
            None if f.default is MISSING else f.default,
            getattr(as_published, f.name),
            about.get(f.name, ""),
        )
        for f in fields(cls)
    ]
    return [*hyperparameters, PUBLISHED]


def wrong_setting(name: str, method: str, run_settings: Collection[str], as_flags: bool) -> ValueError:
    """An error for a name that is no setting of a run nor of its method, with the one that was probably meant."""
    own = [hyperparameter.name for hyperparameter in hyper_parameters(method)]
    meant = closest(name, own if name in run_settings else [*run_settings, *own])
    owners = [m for m, cls in methods.METHODS.items() if name in {f.name for f in fields(cls)}]
    if name in run_settings and not as_flags:
        of_the_run = (
            f"{name} is a setting of the whole run, not of {method}: --{name.replace('_', '-')}, or outside of method in a file"
        )
        return ValueError(of_the_run + (f". Or did you mean {meant!r}?" if meant else ""))
    if owners:
        hint = f"it belongs to {', '.join(owners)}, but the method is {method}"
    elif meant:
        hint = f"did you mean {_written(meant, as_flags)}?"
    else:
        hint = f"'fedfew run --help' lists those of a run, 'fedfew methods {method}' those of {method}"
    return ValueError(f"there is no {'flag' if as_flags else 'setting'} {_written(name, as_flags)}; {hint}")


def _written(name: str, as_flag: bool) -> str:
    return "--" + name.replace("_", "-") if as_flag else repr(name)


@cache
def _field_docs(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class and its bases."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError):  # a class typed into a session has no source
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for statement, below in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                text = _docstring(below)
                if text:
                    docs[statement.target.id] = text
    return docs


def _docstring(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""
