"""fedfew on a real network: the same methods, as a Flower app.

:mod:`~fedfew.flower.site` is a site's work, :mod:`~fedfew.flower.server_loop` the server's. Both exchange
:class:`~fedfew.flower.messages.SiteMessage` objects and know nothing of Flower. What does is :mod:`~fedfew.flower.records`
(messages to Flower's records and back), :mod:`~fedfew.flower.grid`, and the apps: :mod:`~fedfew.flower.client` and
:mod:`~fedfew.flower.server`.

Every update goes through :mod:`~fedfew.flower.wire` when it leaves a site and when it reaches the server.

Imports export, evaluation, training and all below them; only cli imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedfew.util.extras import install_command

if TYPE_CHECKING:
    from fedfew.flower.client import client_app
    from fedfew.flower.server import FedFewStrategy, server_app

__all__ = ["FedFewStrategy", "client_app", "server_app"]

_MODULES = {"client_app": "client", "server_app": "server", "FedFewStrategy": "server"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedfew.flower' has no attribute {name!r}")
    try:
        return getattr(import_module(f"fedfew.flower.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        raise ModuleNotFoundError(
            f"a federation on a network needs Flower: {install_command('flower')}", name=error.name
        ) from None
