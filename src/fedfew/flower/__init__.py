"""fedfew on a real network: the same methods, as a Flower app.

A site's work is :mod:`~fedfew.flower.site`, the server's :mod:`~fedfew.flower.server_loop`; both speak in letters
(:mod:`~fedfew.flower.messages`) and know nothing of Flower. What does is :mod:`~fedfew.flower.records` (letters to Flower's
records and back), :mod:`~fedfew.flower.grid`, and the apps: :mod:`~fedfew.flower.client` and :mod:`~fedfew.flower.server`.

Every update goes through :mod:`~fedfew.flower.wire` on its way out of a site and on its way in to the server.

Imports export, evaluation, training and all below them; only cli imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfew.flower.client import client_app
    from fedfew.flower.server import server_app
    from fedfew.flower.strategy import FedFewStrategy

__all__ = ["FedFewStrategy", "client_app", "server_app"]

_HOME = {"client_app": "client", "server_app": "server", "FedFewStrategy": "strategy"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedfew.flower' has no attribute {name!r}")
    try:
        return getattr(import_module(f"fedfew.flower.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        raise ModuleNotFoundError(
            "a federation on a network needs Flower: pip install 'fedfew[flower]'", name=error.name
        ) from None
