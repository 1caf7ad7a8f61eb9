"""A site's configuration (``flower-supernode --node-config``) and its data."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedfew import data
from fedfew.config import Texts
from fedfew.config.train_config import EngineName
from fedfew.data.new_data import TABLES
from fedfew.data.readers import npz
from fedfew.federation import Federation
from fedfew.targets import check_task_of_files, detected
from fedfew.tasks import TASKS
from fedfew.util.conversion import convert
from fedfew.util.devices import device_named
from fedfew.util.spelling import unknown

STATE = "FEDFEW_SITES"  # environment variable: where sites keep their state unless configured
KNOWN = (
    *("client", "data", "clients", "partition", "data-seed", "classes", "task", "tokenizer", "max-length"),
    *("state", "engine", "device", "share-scores", "masked-only", "most-weight"),
)
FLOWER = ("partition-id", "num-partitions")  # what Flower configures in a simulation


@dataclass(frozen=True)
class SiteConfig:
    """A site's configuration. Nothing of it is sent but the client number."""

    client: int  # which client of the federation this is, 0 … M − 1
    data: str  # a data set's name, a path (.npz, .fed), or module:factory
    clients: int | None = None  # for a data set's name: partitioned among so many clients
    partition: str | None = None
    data_seed: int = 0
    classes: int | None = None  # for an .npz: the number of classes, where this site has not all of them
    task: str | None = None  # what y is, where it does not show it (regression: whole numbers that are amounts)
    tokenizer: str = ""  # of texts: a folder here, or a name on the hub
    max_length: int = Texts.max_length
    state: Path = Path("~/.fedfew/sites")
    engine: EngineName = "sequential"
    device: str = "auto"
    share_scores: bool = True  # report this site's test scores and chosen model to the server?
    masked_only: bool = False  # refuse runs in which the server would see this site's update?
    most_weight: float = 1.0  # masked: refuse to be a larger fraction of a sum
    given: tuple[tuple[str, Any], ...] = ()  # the whole configuration, for a data factory

    @classmethod
    def read(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> SiteConfig:
        """From the node's configuration. A node of a simulation has none: then the run's names the data."""
        simulated = "data" not in node and "num-partitions" in node
        from_run = {key: run[key] for key in ("data", "partition", "data-seed", "clients", "task") if simulated and key in run}
        from_run |= {key: run[key] for key in ("tokenizer", "max-length") if key in run}  # the same at all sites
        merged = from_run | {key: value for key, value in node.items() if key not in FLOWER}
        if simulated:
            merged.setdefault("client", node.get("partition-id"))
        for key in merged:
            if key not in KNOWN and "." not in key:
                raise unknown("setting of a site called", key, KNOWN)
        for needed in ("client", "data"):
            if merged.get(needed) in (None, ""):
                raise ValueError(f"--node-config lacks {needed}: it needs e.g. 'client=0 data=\"mine.npz\"'")
        state = merged.get("state") or os.environ.get(STATE) or cls.state
        return cls(
            client=_whole(merged, "client"),
            data=convert(merged["data"], str, "data"),
            clients=_whole(merged, "clients") if merged.get("clients") else None,
            partition=merged.get("partition") or None,
            data_seed=_whole(merged, "data-seed") if "data-seed" in merged else 0,
            classes=_whole(merged, "classes") if "classes" in merged else None,
            task=convert(merged.get("task", ""), str, "task") or None,
            tokenizer=convert(merged.get("tokenizer", ""), str, "tokenizer"),
            max_length=_whole(merged, "max-length") if "max-length" in merged else Texts.max_length,
            state=Path(state).expanduser(),
            engine=convert(merged.get("engine", cls.engine), EngineName, "engine"),
            device=_device(merged.get("device", cls.device)),
            share_scores=convert(merged.get("share-scores", True), bool, "share-scores"),
            masked_only=convert(merged.get("masked-only", False), bool, "masked-only"),
            most_weight=_fraction(merged, "most-weight", cls.most_weight),
            given=tuple(merged.items()),
        )


def load(config: SiteConfig) -> Federation:
    """The site's samples: a federation of one client, whose identity is the site's client number."""
    federation = _load(config)
    if len(federation) == 1:
        one = federation
    elif config.client < len(federation):
        one = federation.take([config.client])
    else:
        raise ValueError(f"client is {config.client}, but {config.data} has {len(federation)} clients, 0 … {len(federation) - 1}")
    return replace(one, ids=torch.tensor([config.client]))


def _load(config: SiteConfig) -> Federation:
    module, colon, factory = config.data.partition(":")
    if colon and not Path(config.data).exists() and module != "hub":
        return _from_factory(module, factory, dict(config.given))
    if config.data.endswith(".npz"):
        if config.tokenizer:
            raise ValueError(
                f"tokenizer is {config.tokenizer!r}, but {config.data} holds arrays: give a file of texts "
                f"({', '.join(TABLES)}), or leave tokenizer out"
            )
        return from_npz(Path(config.data).expanduser(), config.classes, config.task)
    if config.data.lower().endswith(TABLES):
        if not config.tokenizer:
            raise ValueError(
                f"data is {config.data!r}, a table: a site reads tables of texts only, and with a tokenizer (in the run's "
                'configuration, or tokenizer="FOLDER" here), since all sites must encode them alike. Give an .npz file otherwise'
            )
        return from_texts(config.data, config.tokenizer, config.max_length, config.classes, config.task)
    texts = (config.tokenizer, config.max_length) if config.tokenizer else (None, None)
    return _named(config.data, config.clients, config.partition, config.data_seed, config.task, *texts)


@lru_cache(maxsize=2)  # nodes of a simulation share a process
def _named(
    name: str,
    clients: int | None,
    partition: str | None,
    seed: int,
    task: Any = None,
    tokenizer: str | None = None,
    max_length: int | None = None,
) -> Federation:
    if data.prepared.is_prepared(name):  # its texts are encoded already; the server compares tokenizers
        found = data.read_prepared(name)
        if task not in (None, found.task):
            raise ValueError(f"task is {task!r}, but {name} is a prepared federation with the task {found.task}")
        return found
    if name not in data.names() and not name.startswith("hub:"):
        raise ValueError(
            f"data is {name!r}, which is neither a data set's name ({', '.join(data.names())}), an .npz file, a prepared .fed "
            f"file ('fedfew data prepare' writes one), a table of texts ({', '.join(TABLES)}) nor module:factory"
        )
    of_texts: dict[str, Any] = {"task": task, "tokenizer": tokenizer, "max_length": max_length}
    return data.load(name, clients=clients, partition=partition, seed=seed, **of_texts)


@lru_cache(maxsize=2)  # read and encoded once, not for every message
def from_texts(path: str, tokenizer: str, max_length: int, classes: int | None, task: str | None) -> Federation:
    """One client's texts from a table, a quarter of them for testing unless it has a column of splits.

    Labels must be class numbers: a site may lack classes, so names would be numbered differently at each.
    """
    settings: dict[str, Any] = {"tokenizer": tokenizer, "max_length": max_length, "task": task, "clients": 1}
    found = data.load(path, partition="iid", **settings)
    if found.task == "classification":
        if not all(name.isdecimal() for name in found.class_names):
            raise ValueError(
                f"{path}: labels must be class numbers, 0, 1, …, the same at all sites, not names ({found.class_names[0]!r})"
            )
        number = torch.tensor([int(name) for name in found.class_names])
        count = classes or int(number.max()) + 1
        if int(number.max()) >= count:
            raise ValueError(f"{path}: labels run to {int(number.max())}, but classes is {count}")
        parts = {side: getattr(found, side) for side in ("train", "test")}
        numbered: dict[str, Any] = {side: replace(samples, y=number[samples.y]) for side, samples in parts.items()}
        found = replace(found, classes=count, class_names=(), **numbered)
    return replace(found, name="texts", about={})  # not the file's name: it is not to be sent


def from_npz(path: Path, classes: int | None, task: str | None = None) -> Federation:
    """One client's samples: x_train, y_train, x_test, y_test; or x and y, of which every fourth sample is for testing."""
    check_task_of_files(task)
    found = npz.read_arrays(path)
    given = [y for _, y in found.splits.values()]
    name = TASKS[task].name if task else "classification" if found.class_names else detected(given)
    splits = found.numbered() if name == "classification" else found.splits
    if "all" in splits:
        x, y = splits["all"]
        test = np.arange(len(x)) % 4 == 3
        train_pair, test_pair = (x[~test], y[~test]), (x[test], y[test])
    elif {"train", "test"} <= splits.keys():
        train_pair, test_pair = splits["train"], splits["test"]
    else:
        raise ValueError(f"{path} must hold the arrays x and y, or x_train, y_train, x_test and y_test")
    return Federation.from_arrays(
        [train_pair], [test_pair], classes=classes, task=name
    )  # not the file's name: it is not to be sent


def _from_factory(module: str, name: str, given: dict[str, Any]) -> Federation:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    factory = getattr(importlib.import_module(module), name, None)
    if not callable(factory):
        raise ValueError(f"data is {module}:{name}, but {module} has no function {name}")
    federation = factory(given)
    if not isinstance(federation, Federation):
        raise ValueError(f"{module}:{name} must return a fedfew.Federation, not {type(federation).__name__}")
    return federation


def _whole(values: Mapping[str, Any], key: str) -> int:
    value: int = convert(values[key], int, key)
    if value < 0:
        raise ValueError(f"{key} must be a whole number ≥ 0, not {value}")
    return value


def _device(given: Any) -> str:
    name: str = convert(given, str, "device")
    device_named(name)  # refuses one that this machine has not: else the site would join, and fail in every round
    return name


def _fraction(values: Mapping[str, Any], key: str, default: float) -> float:
    value: float = convert(values.get(key, default), float, key)
    if not 0 < value <= 1:
        raise ValueError(f"{key} must be in (0, 1], not {value}")
    return value
