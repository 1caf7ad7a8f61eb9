"""The settings of training, each declared once: default, description, what is allowed.

:func:`fedfew.train` takes them as keywords, the command line as flags, study files and Flower's run configuration as keys.
Imports nothing but :mod:`fedfew.util`, so that ``fedfew --help`` need not wait for torch.
"""

from fedfew.config.federated import BatchNorm, Freeze
from fedfew.config.group import COMPUTE, DATA, TRAINING
from fedfew.config.local_training import LOSS_TASKS, Augment, LabelPrior, LocalTraining, Precision, TaskName, loss_name
from fedfew.config.recipes import STRONG, Recipe, recipe_settings
from fedfew.config.texts import Texts
from fedfew.config.train_config import TrainConfig, defaults

__all__ = [
    "COMPUTE",
    "DATA",
    "LOSS_TASKS",
    "STRONG",
    "TRAINING",
    "Augment",
    "BatchNorm",
    "Freeze",
    "LabelPrior",
    "LocalTraining",
    "Precision",
    "Recipe",
    "TaskName",
    "Texts",
    "TrainConfig",
    "defaults",
    "loss_name",
    "recipe_settings",
]
