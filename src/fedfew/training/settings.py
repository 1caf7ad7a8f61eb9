"""What a run is started with, under the names of :func:`fedfew.train`, and where each value comes from.

The later of these wins: the defaults of :class:`Settings`, what is recommended for the data set, a YAML file, flags.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from fedfew.config import TRAINING, Recipe, TrainConfig, recipe_settings
from fedfew.training.own_method import import_method, is_own
from fedfew.util import safe_yaml
from fedfew.util.conversion import convert, in_words
from fedfew.util.spelling import unknown
from fedfew.util.validated import AT_LEAST_ONE_OR_NONE, BELOW_ONE, one_of, setting

if TYPE_CHECKING:
    from torch import nn

    from fedfew.federation import Federation
    from fedfew.methods import Method

DATA, TASK = "Data", "What to train"
Scale = Literal["client", "global", "none"]
VocabularyFrom = Literal["train", "all"]
DataTask = Literal["auto", "classification", "regression", "multi-label"]
LOSS_TASKS = {
    "cross-entropy": "classification",
    "mse": "regression",
    "mae": "regression",
    "huber": "regression",
    "bce": "multi-label",
}


@dataclass(frozen=True)
class Settings(TrainConfig):
    """Everything a run is started with: the data, the model, the method and the training settings.

    The method's own hyperparameters are in ``method_settings``.
    """

    dataset: str = setting("digits", "A name ('fedfew data list'), a path, or hub:owner/name.", panel=DATA)
    partition: str | None = setting(
        None,
        "How samples are split among clients: rotation, dirichlet:0.5, pathological:2, by:column, iid, … (docs/data.md).",
        panel=DATA,
    )
    clients: int | None = setting(None, "Number of clients.", panel=DATA)
    client: str | None = setting(None, "Column that names the client of each row; as --partition by:COLUMN.", panel=DATA)
    label: str | None = setting(None, "Label column, if it is not recognised by its name.", panel=DATA)
    input: tuple[str, ...] | None = setting(None, "Input column; give it several times for several features.", panel=DATA)
    size: int | None = setting(None, "Resize images to so many pixels per side.", allowed=AT_LEAST_ONE_OR_NONE, panel=DATA)
    group: str = setting("", "Column whose rows stay in one split (e.g. a patient); none: no grouping.", panel=DATA)
    test_share: float | None = setting(
        None, "Fraction of each client's samples for test. Default: the data's own test split, else 0.25.", panel=DATA
    )
    val_share: float = setting(0.0, "Fraction of each client's samples for validation.", allowed=BELOW_ONE, panel=DATA)
    stratify: bool = setting(False, "Split every class in the same proportion.", panel=DATA)
    scale: Scale = setting(
        "client",
        "Standardise numbers of tables per client, global (over all clients), or none.",
        allowed=one_of(*get_args(Scale)),
        panel=DATA,
    )
    vocabulary_from: VocabularyFrom = setting(
        "train",
        "Texts the vocabulary is built from: train, or all (as published).",
        allowed=one_of(*get_args(VocabularyFrom)),
        panel=DATA,
    )
    skip_bad: bool = setting(False, "Leave out rows that cannot be used, and report how many.", panel=DATA)
    data_seed: int = setting(0, "Seed of the partition; it stays the same when --seed changes.", panel=DATA)
    sample: int | None = setting(None, "Keep only so many rows, drawn by --data-seed: for quick tries.", panel=DATA)
    data_dir: str | None = setting(
        None, "Folder searched for data before any network; else $FEDFEW_DATA.", panel=DATA, outcome=False
    )
    task: DataTask = setting(
        "auto",
        "What the labels are: classification, regression (numbers) or multi-label. auto: by --loss, else by what they are.",
        allowed=one_of(*get_args(DataTask)),
        panel=DATA,
    )
    model: str = setting("mlp", "A model's name, or module:factory for a module of your own (found from here).", panel=TASK)
    recipe: Recipe = setting(
        "plain",
        "strong: label prior, server momentum, averaged server models, a mixture and, for colour images, augmentation.",
        allowed=one_of(*get_args(Recipe)),
        panel=TRAINING,
        outcome=False,  # the settings it stands for count themselves
    )
    method: str = setting(
        "fedfew", "Federated method (see 'fedfew methods'), or module:Class for one of your own (found from here).", panel=TASK
    )
    method_settings: dict[str, Any] = field(default_factory=dict)

    def as_config(self) -> dict[str, Any]:
        """What a ``--config`` file with these settings holds."""
        values = {name: getattr(self, name) for name in (*OF_THE_DATA, *TYPES)}  # the data first
        values["method"] = {"name": self.method} | self.method_settings
        return values


TYPES: dict[str, Any] = {name: hint for name, hint in get_type_hints(Settings).items() if name != "method_settings"}
OF_THE_DATA = tuple(f.name for f in fields(Settings) if f.metadata.get("panel") == DATA)
"""The settings that decide which federation is loaded."""

_PAPER = {"model": "cnn", "rounds": 2000, "batch_size": 50, "lr": 0.005}
# By data set: what is taken where neither a flag nor the file says anything. These are the paper's where it has the set (numbers
# of clients and partitions come with the data sets themselves); the MNISTs follow FEMNIST, and ham10000 follows fed-isic2019.
RECOMMENDED: dict[str, dict[str, Any]] = {
    "digits": {"partition": "rotation", "clients": 20, "model": "mlp", "rounds": 100, "batch_size": 10, "lr": 0.1},
    "cifar10": _PAPER,
    "cifar100": _PAPER,
    "tiny-imagenet": _PAPER | {"lr": 0.0005},
    "femnist": _PAPER | {"batch_size": 100},
    "ag-news": _PAPER | {"model": "textcnn", "batch_size": 100},
    "kvasir": _PAPER | {"model": "resnet18", "rounds": 1000, "batch_size": 100, "lr": 0.002},
    "fed-isic2019": _PAPER | {"model": "resnet18", "rounds": 1000},
    "mnist": _PAPER | {"batch_size": 100},
    "fashion-mnist": _PAPER | {"batch_size": 100},
    "mnist-writers": _PAPER | {"batch_size": 100},
    "ham10000": _PAPER | {"model": "resnet18", "rounds": 1000},
}


COLOUR_IMAGES = {"cifar10", "cifar100", "tiny-imagenet", "kvasir", "fed-isic2019", "ham10000"}


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
    own = _method_settings(name, values.pop("method_settings", {}) | loose)
    own |= _from_flags(name, method_flags)
    dataset = values.get("dataset", Settings.dataset)
    classes = task_named(values.get("task", "auto"), values.get("loss", "auto")) in (None, "classification")
    augmented = dataset in COLOUR_IMAGES and values.get("freeze", "none") == "none"  # features are computed once
    recipe = recipe_settings(values.get("recipe", "plain"), augmented, classes)
    recommended = RECOMMENDED.get(dataset, {}) | recipe
    return _with_part(Settings(**(recommended | values), method_settings=own))


def _with_part(settings: Settings) -> Settings:
    """The same with adapters always written in the same way, so that equal runs have equal settings."""
    if settings.adapters == settings.freeze == "none":
        return settings
    from fedfew.adapters import TrainedPart  # imports torch

    part = TrainedPart.recorded(vars(settings))
    part.check(settings)
    return replace(settings, **part.settings())


def task_named(task: str, loss: str) -> str | None:
    """The task that the settings name, themselves or by the loss; None: what the labels show."""
    return LOSS_TASKS.get(loss) if task == "auto" else task


def _over(values: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """``newer`` laid over ``values``; hyper-parameters survive only as long as the method stays the same."""
    merged = values | newer
    for key in ("method_settings", "loose"):
        old = values.get(key, {}) if newer.get("method", values.get("method")) == values.get("method") else {}
        merged[key] = old | newer.get(key, {})
    return merged


def _from_file(contents: Mapping[str, Any]) -> dict[str, Any]:
    """A file's names and values, checked; what can only be a hyper-parameter of the method is kept under ``loose``."""
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


def _method_settings(method: str, given: Mapping[str, Any], as_flags: bool = False) -> dict[str, Any]:
    """Hyper-parameters converted to the types that the method declares; as they are where it has not been imported yet."""
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
    spelt_out: dict[str, str] = {}
    for name, value in given.items():
        positive = name.removeprefix("no_")
        if value is not None:
            spelt_out[name] = value
        elif positive in known and known[positive].hint is bool:
            spelt_out[positive] = "true" if positive == name else "false"
        elif name in known:
            raise ValueError(f"{known[name].flag} needs a value: {in_words(known[name].hint)}")
        else:
            spelt_out[name] = ""  # a misspelt flag, which is answered below
    return _method_settings(method, spelt_out, as_flags=True)


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


def make_method(settings: Settings) -> Method:
    """The method with its hyperparameters; one of the user's own is imported."""
    from fedfew import methods

    if is_own(settings.method):
        import_method(settings.method)
    return methods.make(settings.method, **_method_settings(settings.method, settings.method_settings))


def make_federation(settings: Settings) -> tuple[Federation, list[str]]:
    """The data set, partitioned among clients, and notes about it."""
    from fedfew import data

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        federation = data.load(settings.dataset, **data_keywords(settings))
    notes = [*(str(warning.message) for warning in warned), *federation.about.get("notes", [])]
    if settings.recipe == "strong" and federation.task != "classification":
        notes.append(f"recipe strong without a label prior, which is for classes: the task is {federation.task}")
    return federation, notes


def data_keywords(settings: Settings) -> dict[str, Any]:
    """The keywords of :func:`fedfew.data.load`."""
    columns = settings.input
    other_names = {
        "seed": settings.data_seed,
        "on_bad": "skip" if settings.skip_bad else "raise",
        "group": settings.group or None,
        "task": task_named(settings.task, settings.loss),
        "input": columns[0] if columns is not None and len(columns) == 1 else columns,
    }
    same = {name: getattr(settings, name) for name in OF_THE_DATA if name not in ("dataset", "data_seed", "skip_bad")}
    return same | other_names


def find_model(name: str) -> str | Callable[[], nn.Module]:
    """A model's name as it is, or the factory that ``module:factory`` names."""
    return find_function(name, "model") if ":" in name else name


def find_function(name: str, setting: str) -> Callable[..., Any]:
    """What ``module:function`` names, imported from here. setting: which one names it, for messages."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(f"{setting} is {name!r}, but the module {module_name} cannot be imported: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        what = {"model": "factory", "method": "class"}.get(setting, "function")
        raise unknown(f"{what} in {module_name} called", attribute, [n for n, v in vars(module).items() if callable(v)])
    found: Callable[..., Any] = function
    return found


def training_arguments(settings: Settings) -> dict[str, Any]:
    """The keyword arguments of :func:`fedfew.train` but for folder, resume and on_round."""
    plain = {f.name: getattr(settings, f.name) for f in fields(TrainConfig)}
    loss = find_function(settings.loss, "loss") if ":" in settings.loss else settings.loss
    return plain | {"model": find_model(settings.model), "method": make_method(settings), "loss": loss}
