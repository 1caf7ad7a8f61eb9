"""All settings of a run, under the names of :func:`fedfew.train`; those recommended for each data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

from fedfew.config import DATA, LOSS_TASKS, Recipe, TaskName, Texts, TrainConfig
from fedfew.config.group import data_setting, train_setting
from fedfew.util.validated import AT_LEAST_ONE_OR_NONE, BELOW_ONE, setting

TASK = "What to train"
Scale = Literal["client", "global", "none"]
VocabularyFrom = Literal["train", "all"]
DataTask = Literal["auto", TaskName]


@dataclass(frozen=True)
class Settings(Texts, TrainConfig):
    """Everything a run is started with: the data, the model, the method and the training settings.

    The method's own hyperparameters are in ``method_settings``.
    """

    dataset: str = data_setting("digits", "A name ('fedfew data list'), a path, or hub:owner/name.")
    partition: str | None = data_setting(
        None, "How samples are split among clients: rotation, dirichlet:0.5, pathological:2, by:column, iid, … (docs/data.md)."
    )
    clients: int | None = data_setting(None, "Number of clients.")
    client: str | None = data_setting(None, "Column that names the client of each row; as --partition by:COLUMN.")
    label: str | tuple[str, ...] | None = data_setting(
        None, "Label column, if it is not recognised by its name; give it several times for several labels or targets per sample."
    )
    input: tuple[str, ...] | None = data_setting(None, "Input column; give it several times for several features.")
    size: int | None = data_setting(None, "Resize images to so many pixels per side.", allowed=AT_LEAST_ONE_OR_NONE)
    group: str = data_setting("", "Column whose rows stay in one split (e.g. a patient); none: no grouping.")
    test_share: float | None = data_setting(
        None, "Fraction of each client's samples for test. Default: the data's own test split, else 0.25."
    )
    val_share: float = data_setting(0.0, "Fraction of each client's samples for validation.", allowed=BELOW_ONE)
    stratify: bool = data_setting(False, "Split every class in the same proportion.")
    scale: Scale = data_setting(
        "client", "Standardise numbers of tables per client, global (over all clients), or none.", allowed=Scale
    )
    vocabulary_from: VocabularyFrom = data_setting(
        "train", "Texts the vocabulary is built from: train, or all (as published).", allowed=VocabularyFrom
    )
    skip_bad: bool = data_setting(False, "Leave out rows that cannot be used, and report how many.")
    data_seed: int = data_setting(0, "Seed of the partition; it stays the same when --seed changes.")
    sample: int | None = data_setting(None, "Keep only so many rows, drawn by --data-seed: for quick tries.")
    data_dir: str | None = data_setting(None, "Folder searched for data before any network; else $FEDFEW_DATA.", outcome=False)
    task: DataTask = data_setting(
        "auto",
        "What the labels are: classification, regression (numbers) or multi-label; auto: by --loss, else by what they are. "
        "Of texts with a --tokenizer also language-modelling, which needs no labels.",
        allowed=DataTask,
    )
    model: str = setting("mlp", "A model's name, or module:factory for a module of your own (found from here).", panel=TASK)
    recipe: Recipe = train_setting(
        "plain",
        "strong: label prior, server momentum, averaged server models, a mixture, smoothing-end and check-share for FedFew and, "
        "for colour images, augmentation (docs/recipe.md).",
        allowed=Recipe,
        outcome=False,  # the settings it stands for count themselves
    )
    method: str = setting(
        "fedfew", "Federated method (see 'fedfew methods'), or module:Class for one of your own (found from here).", panel=TASK
    )
    method_settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        """From what JSON makes of settings: lists of columns are tuples again, as data are found by their settings."""
        restored: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**restored)

    def as_config(self) -> dict[str, Any]:
        """What a ``--config`` file with these settings holds."""
        values = {name: getattr(self, name) for name in (*OF_THE_DATA, *TYPES)}  # the data first
        values["method"] = {"name": self.method} | self.method_settings
        return values


TYPES: dict[str, Any] = {name: hint for name, hint in get_type_hints(Settings).items() if name != "method_settings"}
_PANELS = (TASK, DATA)  # first in --help; the others follow
FIELDS = sorted(  # in the order of --help: dataset before tokenizer
    fields(Settings),
    key=lambda f: (_PANELS.index(panel) if (panel := f.metadata.get("panel")) in _PANELS else 2, f.name in Texts.__annotations__),
)
OF_THE_DATA = tuple(f.name for f in FIELDS if f.metadata.get("panel") == DATA)
"""The settings that decide which federation is loaded."""

_PAPER = {"model": "cnn", "rounds": 2000, "batch_size": 50, "lr": 0.005}
# Settings by data set, used unless a flag or a file sets them. They are the paper's for its data sets (numbers of clients and
# partitions are declared with the data sets). The MNISTs follow FEMNIST, and ham10000 follows fed-isic2019.
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


def task_named(task: str, loss: str) -> str | None:
    """The task that the settings name, themselves or by the loss; None: what the labels show."""
    return LOSS_TASKS.get(loss) if task == "auto" else task
