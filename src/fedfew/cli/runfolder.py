"""A run's folder: besides the checkpoints, the settings it can be started from again, and what the clients' data are like."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.cli import runfiles
from fedfew.cli.places import argument
from fedfew.studies.folder import STUDY
from fedfew.training.own_method import is_own
from fedfew.training.resolve import read_file
from fedfew.training.run_files import ABOUT_DATA as ABOUT_DATA
from fedfew.training.run_files import CONFIG as CONFIG
from fedfew.training.run_files import FINAL_SCORES as FINAL_SCORES
from fedfew.training.run_files import about_data as about_data
from fedfew.training.run_files import final_scores as final_scores
from fedfew.training.run_files import progress
from fedfew.util.files import HOLDER, LOCK, write_atomically

if TYPE_CHECKING:
    from fedfew.federation import Federation
    from fedfew.training.run import Run
    from fedfew.training.settings import Settings

RUNS = Path("runs")
MOST_NAMED = 8  # folders, in a message


def check_run(folder: Path) -> None:
    """Raise ValueError where a folder holds no run to show, with what to give instead."""
    from fedfew.training.checkpoint import checkpoints

    if not checkpoints(folder):
        raise ValueError(_not_a_run(folder))


def _not_a_run(folder: Path) -> str:
    """Why nothing can be shown, and what to give instead."""
    if not folder.exists():
        newest = sorted(RUNS.glob(f"*/{CONFIG}"), key=lambda p: p.stat().st_mtime)
        return f"there is no folder {folder}" + (f"; the newest run is {newest[-1].parent}" if newest else "")
    if folder.is_file():
        return f"{folder} is a file, but the folder of a run is needed"
    if (folder / CONFIG).exists() and progress(folder):
        watch = f"'fedfew watch {argument(folder)}'"
        return f"{folder} holds a run without a checkpoint yet: {watch} shows it as soon as there is one"
    studies = sorted(path.parent for path in folder.glob(f"*/{STUDY}"))
    if studies:
        return f"{folder} is not a study, but holds {len(studies)}; give one: {', '.join(map(str, studies[:MOST_NAMED]))}"
    within = sorted({path.parent for path in folder.glob("*/round-*")} | {path.parent for path in folder.glob("*/*/round-*")})
    if within:
        named = ", ".join(map(str, within[:MOST_NAMED])) + (", …" if len(within) > MOST_NAMED else "")
        return f"{folder} is not the folder of a run, but holds {len(within)} of them; give one: {named}"
    return f"{folder} is not the folder of a run or a study: it has no round-NNNNNN in it, as one that 'fedfew run' made"


def fresh(name: str) -> Path:
    """A folder below runs/ that is not there yet."""
    plain, number = as_name(name), 1
    while (path := RUNS / (plain if number == 1 else f"{plain}-{number}")).exists():
        number += 1
    return path


def named(dataset: str) -> str:
    """A data set in the name of a folder: of a file or folder the last part of its path, without an ending such as .csv."""
    path = Path(dataset).expanduser()
    if not path.exists():
        return dataset
    return path.stem if path.is_file() else path.resolve().name


def as_name(text: str) -> str:
    """``text`` with nothing in it that a file's name should not have."""
    return re.sub(r"[^\w.=-]+", "-", text)


def to_resume(folder: Path | None, command: str) -> dict[str, Any]:
    """The settings of the run in a folder."""
    from fedfew.training.checkpoint import checkpoints

    if folder is None:
        newest = sorted((p for p in RUNS.glob(f"*/{CONFIG}") if _holds(p.parent, command)), key=lambda p: p.stat().st_mtime)
        hint = f"; the newest is {newest[-1].parent}" if newest else ""
        raise ValueError(f"--resume needs --folder, the folder of the run to continue{hint}")
    if (folder / CONFIG).exists():
        return read_file(folder / CONFIG) | _recorded_method(folder)
    if checkpoints(folder):  # made from Python: the flags must say the rest, and train() checks them
        return {}
    raise ValueError(f"there is no run in {folder} to continue; start one with 'fedfew {command} --folder {argument(folder)}'")


def configuration(
    folder: Path | None, command: str, resume: bool, config: Path | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of the run to resume, if one is, below those of a configuration file; ``given``: the flags."""
    file = to_resume(folder, command) if resume else {}
    check_imports(folder, file, given)
    return file | (read_file(config) if config else {})


def _holds(folder: Path, command: str) -> bool:
    """Whether there is something in a folder that this command can continue: a run, or for compare and others runs below."""
    from fedfew.training.checkpoint import checkpoints

    return any(checkpoints(place) for place in ([folder] if command == "run" else folder.iterdir()) if place.is_dir())


def _recorded_method(folder: Path) -> dict[str, Any]:
    """The method with all its hyperparameters, as a checkpoint holds them: defaults may have changed since."""
    from fedfew import methods
    from fedfew.training.checkpoint import newest_settings

    settings = newest_settings(folder)
    if not settings:
        return {}
    if is_own(name := _named_method(folder)):  # the class has another name
        return {"method": dict(settings["method"]) | {"name": name}}
    return {"method": methods.recorded(settings["method"])}


def _named_method(folder: Path) -> str:
    """The method that the configuration in a folder names."""
    method = read_file(folder / CONFIG).get("method", "")
    return str(method.get("name", "")) if isinstance(method, dict) else str(method)


def check_imports(folder: Path | None, file: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to import a model or a loss because a folder names it: the user must."""
    for name in ("model", "loss"):
        found = str(file.get(name, ""))
        if ":" in found and given.get(name) is None:
            raise ValueError(f"the run in {folder} was made with a {name} of your own, {found}: name it again (--{name} {found})")


def to_name_again(settings: Settings) -> str:
    """The flags that a resumption needs besides the folder."""
    named = {name: getattr(settings, name) for name in ("model", "loss")}
    return "".join(f" --{name} {value}" for name, value in named.items() if ":" in value)


def check_named_by_user(folder: Path | None, found: str, given: str | None, flag: str) -> None:
    """Refuse to import a method because a folder names it: the user must."""
    if is_own(found) and given is None:
        raise ValueError(f"the run in {folder} was made with a method of your own, {found}: name it again ({flag} {found})")


@contextmanager
def kept(
    folder: Path, config: dict[str, Any], federation: Federation, resume: bool, writes: bool = True
) -> Iterator[Callable[[], None]]:
    """Keep the settings in the folder (if this, of several processes, is the one that writes).

    A fresh run's are written at once, and taken away if it fails before its first checkpoint. A resumed run's (it may be longer
    now) are written when it is accepted: call what is yielded then.
    """
    from fedfew.training.checkpoint import checkpoints

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, config)
        write_atomically(folder / ABOUT_DATA, json.dumps(_about(federation)))
        runfiles.write_labels(folder, federation)

    if checkpoints(folder) and not resume:
        raise ValueError(f"{folder} already holds a run: continue it (--resume), or choose another --folder")
    if not writes:
        yield lambda: None
        return
    if not checkpoints(folder):
        write()
    with discarded_if_unused(folder):
        yield write


@contextmanager
def discarded_if_unused(folder: Path) -> Iterator[None]:
    """Where an error ends what is within before there is a checkpoint in the folder or below, leave nothing behind."""
    try:
        yield
    except Exception:
        if folder.exists() and not any(folder.rglob("round-*")):
            for name in (CONFIG, ABOUT_DATA, *runfiles.NAMES):
                (folder / name).unlink(missing_ok=True)
            if {path.name for path in folder.iterdir()} <= {LOCK, HOLDER}:
                shutil.rmtree(folder)
        raise


def write_config(folder: Path, config: dict[str, Any]) -> None:
    import yaml

    write_atomically(folder / CONFIG, yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True))


def write_first_config(folder: Path, config: dict[str, Any], resume: bool, what: str) -> None:
    """Create the folder of several runs with their common settings; it must be empty, unless what is in it is resumed."""
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise ValueError(f"{folder} is not empty: continue the {what} in it (--resume), or choose another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)


def write_final_scores(folder: Path, run: Run, federation: Federation) -> dict[str, Any]:
    """Loss, accuracy, macro-F1 and AUC of every client's served model, computed once and kept with the round they are of."""
    from fedfew.evaluation.metrics import evaluate
    from fedfew.training.confusion import Confusion

    pairs: list[tuple[Any, Any]] = []
    found = evaluate(run, federation, lambda outputs, y: pairs.append((y.numpy(), outputs.argmax(1).numpy())))
    if run.task.name == "classification":
        Confusion.of(pairs, federation.classes).write(folder, run.round)
    scores = {name: [None if math.isnan(v) else v for v in values.tolist()] for name, values in asdict(found).items()}
    write_atomically(folder / FINAL_SCORES, json.dumps({"round": run.round} | scores))
    return scores


def _about(federation: Federation) -> dict[str, Any]:
    train, groups = federation.train, federation.groups
    about: dict[str, Any] = {"train": train.count.tolist(), "test": federation.test.count.tolist(), "pixels": train.pixels}
    about["dtype"] = str(train.x.dtype).removeprefix("torch.")
    tokens = federation.task == "language-modelling"  # a class per token of the vocabulary: too many to list
    about |= {"class_names": [] if tokens else list(federation.class_names), "client_names": list(federation.client_names)}
    if federation.about.get("columns"):
        about["columns"] = federation.about["columns"]
    return about if groups is None else about | {"groups": groups.tolist()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
