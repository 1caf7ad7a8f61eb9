"""Where each setting of a run comes from.

The later of these wins: the defaults of :class:`Settings`, what is recommended for the data set, a YAML file, flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedfew.config import recipe_settings
from fedfew.training.own_method import is_own
from fedfew.training.settings import COLOUR_IMAGES, RECOMMENDED, TYPES, Settings, task_named
from fedfew.util import safe_yaml
from fedfew.util.conversion import convert, in_words


def resolve(flags: Mapping[str, Any], method_flags: Mapping[str, str | None], *files: Mapping[str, Any]) -> Settings:
    """The settings of a run.

    flags: those given, of :class:`Settings`; method_flags: those given that should be the method's, still text;
    files: contents of YAML files, the last wins.
    """
    values: dict[str, Any] = {}
    for contents in files:
        values = _over(values, _from_file(contents))
    values = _over(values, {name: convert(value, TYPES[name], name) for name, value in flags.items()})
    loose = values.pop("loose", {})
    name = values.get("method", Settings.method)
    own = converted(name, values.pop("method_settings", {}) | loose)
    own |= _from_flags(name, method_flags)
    dataset = values.get("dataset", Settings.dataset)
    classes = task_named(values.get("task", "auto"), values.get("loss", "auto")) in (None, "classification")
    augmented = dataset in COLOUR_IMAGES and values.get("freeze", "none") == "none"  # features are computed once
    recipe = recipe_settings(values.get("recipe", "plain"), augmented, classes)
    recommended = RECOMMENDED.get(dataset, {}) | recipe
    return _with_part(Settings(**(recommended | values), method_settings=own))


def _with_part(settings: Settings) -> Settings:
    """The same with adapters in their standard spelling, so that equal runs have equal settings."""
    if settings.adapters == settings.freeze == "none":
        return settings
    from fedfew.adapters import TrainedPart  # imports torch

    part = TrainedPart.recorded(vars(settings))
    part.check(settings)
    return replace(settings, **part.settings())


def _over(values: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """``newer`` laid over ``values``; hyperparameters are kept only if the method stays the same."""
    merged = values | newer
    for key in ("method_settings", "loose"):
        old = values.get(key, {}) if newer.get("method", values.get("method")) == values.get("method") else {}
        merged[key] = old | newer.get(key, {})
    return merged


def _from_file(contents: Mapping[str, Any]) -> dict[str, Any]:
    """A file's names and values, checked; names that can only be hyperparameters of the method are kept under ``loose``."""
    values: dict[str, Any] = {}
    loose: dict[str, Any] = {}
    for key, value in contents.items():
        name = str(key).replace("-", "_")
        if name == "method" and isinstance(value, Mapping):
            own = dict(value)
            if "name" not in own:
                raise ValueError("method in the configuration is a mapping without 'name': write method: {name: fedfew, …}")
            values["method"] = convert(own.pop("name"), str, "method")
            values["method_settings"] = own
        elif name in TYPES:
            values[name] = convert(value, TYPES[name], name)
        else:
            loose[name] = value
    return values | {"loose": loose}


def converted(method: str, given: Mapping[str, Any], as_flags: bool = False) -> dict[str, Any]:
    """A method's hyperparameters, converted to the types that it declares; unconverted if the method is not imported yet."""
    from fedfew.methods import METHODS
    from fedfew.methods.hyperparameters import hyper_parameters, wrong_setting

    if is_own(method) and method not in METHODS:
        return {str(key).replace("-", "_"): value for key, value in given.items()}
    known = {hyperparameter.name: hyperparameter for hyperparameter in hyper_parameters(method)}
    values = {}
    for key, value in given.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise wrong_setting(name, method, TYPES, as_flags)
        values[name] = convert(value, known[name].hint, f"{name} of {method}")
    return values


def _from_flags(method: str, given: Mapping[str, str | None]) -> dict[str, Any]:
    """The same from flags: a switch needs no value, and ``--no-…`` turns it off."""
    from fedfew.methods.hyperparameters import hyper_parameters

    if not given:
        return {}
    known = {hyperparameter.name: hyperparameter for hyperparameter in hyper_parameters(method)}
    texts: dict[str, str] = {}
    for name, value in given.items():
        positive = name.removeprefix("no_")
        if value is not None:
            texts[name] = value
        elif positive in known and known[positive].hint is bool:
            texts[positive] = "true" if positive == name else "false"
        elif name in known:
            raise ValueError(f"{known[name].flag} needs a value: {in_words(known[name].hint)}")
        else:
            texts[name] = ""  # a misspelt flag: the next line reports it
    return converted(method, texts, as_flags=True)


def read_file(path: Path) -> dict[str, Any]:
    """The names and values in a YAML file."""
    try:
        contents = safe_yaml.load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {path} to read settings from (--config)") from None
    except (safe_yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML file that can be read: {error}") from error
    if contents is None:
        return {}
    if not isinstance(contents, dict):
        raise ValueError(f"{path} must hold names and values (rounds: 100 …), not a {type(contents).__name__}")
    return contents
