"""The default number of models, where there are fewer clients than that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.methods import Method


def fitting(method: Method, stated: Collection[str], clients: int) -> tuple[Method, str]:
    """The method with as many models as there are clients, if its default is more, and a line that says so; else the method
    itself. A K that was stated, being among the hyperparameters ``stated``, is never changed."""
    default = getattr(method, "models", None)
    if "models" in stated or not isinstance(default, int) or default <= clients:
        return method, ""
    try:
        method.check_against(clients)
    except ValueError:
        smaller: Method = replace(method, models=clients)  # type: ignore[call-arg]  # it has this field
        there_are = "there is only 1 client" if clients == 1 else f"there are only {clients} clients"
        return smaller, f"{method.name} has {counted(clients, 'model')}, not its default of {default}: {there_are}"
    return method, ""  # to some methods more models than clients are no error
