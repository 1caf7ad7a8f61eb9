"""Functions and classes that the user names as ``module:name``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from fedfew.util.spelling import unknown


def find_function(name: str, setting: str) -> Callable[..., Any]:
    """What ``module:function`` names, imported from here. setting: which one names it, for messages."""
    module_name, _, attribute = name.partition(":")
    what = {"model": "factory", "method": "class"}.get(setting, "function")
    is_path = "/" in module_name or module_name.startswith(".") or module_name.endswith(".py")
    if is_path or not module_name or not attribute:
        raise ValueError(f"{setting} is {name!r}, but must be module:{what}, as mine:{attribute or what} for one in mine.py here")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(f"{setting} is {name!r}, but the module {module_name} cannot be imported: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise unknown(f"{what} in {module_name} called", attribute, [n for n, v in vars(module).items() if callable(v)])
    found: Callable[..., Any] = function
    return found
