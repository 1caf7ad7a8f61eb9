"""The training settings in the signature and docstring of a function that takes them as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from fedfew.config.train_config import TrainConfig

Function = TypeVar("Function", bound=Callable[..., Any])


def documents_settings(function: Function) -> Function:
    """Show each setting, from its one declaration, in place of ``**settings``."""
    own = inspect.signature(function)
    named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(f.name, keyword, default=f.default, annotation=f.type) for f in fields(TrainConfig)]
    function.__signature__ = own.replace(parameters=[*named, *added])  # type: ignore[attr-defined]  # a function can have one
    lines = [f"    {f.name}: {f.metadata['about']} (default: {f.default!r})" for f in fields(TrainConfig)]
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nTraining settings:\n" + "\n".join(lines)
    return function
