"""The default number of models, where there are fewer clients than that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

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
        return smaller, f"{method.name} has {clients} models, not its default of {default}: there are only {clients} clients"
    return method, ""  # to some methods more models than clients are no error
