"""A study as its file declares it: what is run, with which seeds and protocols, and which tables and figures are made.

Here a file is read and its shape checked; :mod:`fedfew.studies.plan` checks the settings of every run. Nothing is trained before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedfew.config import COMPUTE
from fedfew.studies.protocol import PROTOCOLS, TUNED
from fedfew.studies.study_shapes import Shapes, StudyError, short
from fedfew.studies.tuning import MOST_CANDIDATES, NOT_TUNED
from fedfew.training.settings import Settings
from fedfew.util import safe_yaml
from fedfew.util.printable import printable
from fedfew.util.spelling import unknown

SUFFIXES = (".yaml", ".yml")
MOST_SEEDS, MOST_POINTS = 1_000, 1_000
SET_BY_THE_PLAN = {"seed": "seeds", "data_seed": "seeds"}  # a seed sets both
NOT_AN_AXIS = {name for name, f in Settings.__dataclass_fields__.items() if f.metadata.get("panel") == COMPUTE}
_TRAINING = ("columns", "rows", "base", "grid", "sweep", "seeds", "protocols", "tune", "tables", "figures")
KEYS = ("name", "title", "about", "call", *_TRAINING)

Mappings = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Study:
    """The contents of a study file. ``call`` studies have no runs: a function does everything."""

    name: str
    title: str
    about: str
    source: str  # the file, as the user named it
    text: str  # its contents
    call: str | None = None
    protocols: tuple[str, ...] = ()
    seeds: dict[str, int] = field(default_factory=dict)  # how many, by protocol
    base: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: Mappings = ({},)  # of the grid or sweep
    tune: dict[str, list[Any]] = field(default_factory=dict)  # hyperparameters and their values, under the protocol tuned
    row_tune: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # the same of single rows, which wins
    tables: Mappings = ()
    figures: Mappings = ()

    def error(self, place: str, message: object) -> StudyError:
        return Shapes(self.source).error(place, message)


def catalogue() -> dict[str, str]:
    """The studies that come with the package: names and the contents of their files."""
    folder = resources.files("fedfew.studies") / "catalogue"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(SUFFIXES)), key=lambda f: f.name)
    return {f.name.rpartition(".")[0]: f.read_text(encoding="utf-8") for f in files}


def read(name_or_path: str | Path) -> Study:
    """The study of that name in the catalogue, or the one in a YAML file."""
    text = str(name_or_path)
    if not text.endswith(SUFFIXES) and os.sep not in text:
        known = catalogue()
        if text in known:
            return parse(known[text], f"study {text}")
        beside = [Path(text + suffix) for suffix in SUFFIXES if Path(text + suffix).is_file()]
        hint = f" ({beside[0]} is a file here: give its whole name)" if beside else ""
        raise ValueError(f"{unknown('study', text, known)}{hint}; a study of your own is named by its file: mine.yaml")
    try:
        contents = Path(text).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"there is no study file {text}; 'fedfew study new NAME' writes one to start from") from None
    except IsADirectoryError:
        raise ValueError(f"{text} is a folder: give the study's name or file, and with --folder where its results are") from None
    except UnicodeDecodeError as error:
        raise StudyError(f"{text} is not a text file: {error}") from None
    return parse(contents, text)


def parse(text: str, source: str) -> Study:
    """A study from the contents of its file."""
    return _Reader(source).study(text)


class _Reader(Shapes):
    """Reads the contents of a study file."""

    def study(self, text: str) -> Study:
        try:
            contents = safe_yaml.load(text)
        except safe_yaml.YAMLError as error:
            raise StudyError(f"{self.source} is not YAML that can be read: {error}") from None
        document = self.mapping(contents, "the file")
        self.check_known(document, KEYS, "the file", "entry")
        name = self.text(document, "name")
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith(".") or name == "runs":
            raise self.error("name", f"{name!r} must be made of letters, digits, '-', '_' and '.', and not be 'runs'")
        common: dict[str, Any] = {
            "name": name,
            "title": self.text(document, "title", name),
            "about": self.text(document, "about", ""),
            "source": self.source,
            "text": text,
        }
        if "call" in document:
            return Study(**common, call=self._call(document))
        return Study(**common, **self._training(document))

    def _call(self, document: dict[str, Any]) -> str:
        both = [key for key in _TRAINING if key in document]
        if both:
            raise self.error("call", f"a study that calls a function has no {', '.join(both)}")
        call = self.text(document, "call")
        module, colon, function = call.partition(":")
        if not (colon and module and function):
            raise self.error("call", f"{call!r} must be module:function")
        return call

    def _training(self, document: dict[str, Any]) -> dict[str, Any]:
        for needed in ("columns", "rows"):
            if not document.get(needed):
                raise self.error(needed, "is missing: columns name the data, rows the methods (or write call: module:function)")
        protocols = self._protocols(document.get("protocols", ["fair"]))
        tables, figures = (self._specs(document, key) for key in ("tables", "figures"))
        rows = self._layers(document, "rows")
        row_tune = {name: self._tune(row.pop("tune"), f"rows → {name} → tune") for name, row in rows.items() if "tune" in row}
        tune = self._tune(document.get("tune") or {}, "tune")
        if TUNED in protocols and not (tune or row_tune):
            raise self.error("protocols", "tuned needs hyperparameters to choose from: write tune: {lr: [0.01, 0.1]}")
        return {
            "tune": tune,
            "row_tune": row_tune,
            "protocols": protocols,
            "seeds": self._seeds(document.get("seeds", 1), protocols),
            "base": self._settings(document.get("base") or {}, "base"),
            "columns": self._layers(document, "columns"),
            "rows": self._with_methods(rows),
            "points": self._points(document),
            "tables": tables,
            "figures": figures,
        }

    def _protocols(self, given: Any) -> tuple[str, ...]:
        names = self.list_of([given] if isinstance(given, str) else given, "protocols", f"a list of {' and '.join(PROTOCOLS)}")
        for name in names:
            if name not in PROTOCOLS:
                raise self.error("protocols", unknown("protocol", str(name), PROTOCOLS))
        if not names or len(set(names)) < len(names):
            raise self.error("protocols", f"{given!r} must name some of {', '.join(PROTOCOLS)}, each once")
        return tuple(names)

    def _seeds(self, given: Any, protocols: tuple[str, ...]) -> dict[str, int]:
        if not isinstance(given, Mapping):
            return {protocol: self._count(given, "seeds") for protocol in PROTOCOLS}
        self.check_known(given, PROTOCOLS, "seeds", "protocol")
        lacking = [p for p in protocols if p not in given]
        if lacking:
            raise self.error(
                "seeds", f"has no number for the protocol {lacking[0]!r}: write one number, or one for each protocol"
            )
        return {p: self._count(given.get(p, 1), f"seeds → {p}") for p in PROTOCOLS}

    def _count(self, value: Any, place: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_SEEDS:
            wanted = f"a whole number from 1 to {MOST_SEEDS:,}: the number of seeds, which are 0, 1, …"
            raise self.error(place, f"{short(value)} must be {wanted}")
        return value

    def _layers(self, document: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
        layers = self.mapping(document[key], key)
        for name in layers:
            if name != printable(name):
                raise self.error(f"{key} → {printable(name)}", "a name must not contain line breaks or control characters")
            if "/" in name or any(c in name for c in "*?["):
                raise self.error(f"{key} → {name}", "a name must not contain / * ? [ (--only picks columns and rows by them)")
        return {name: self._settings(settings or {}, f"{key} → {name}") for name, settings in layers.items()}

    def _with_methods(self, rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, row in rows.items():
            if "method" not in row:
                raise self.error(f"rows → {name}", "has no method: write method: fedavg, or method: {name: fedfew, models: 3}")
        return rows

    def _points(self, document: dict[str, Any]) -> Mappings:
        grid, sweep = document.get("grid") or {}, document.get("sweep")
        if grid and sweep:
            raise self.error("sweep", "a study has a grid (all combinations) or a sweep (a list of settings), not both")
        if sweep:
            listed = self.list_of(sweep, "sweep", "a list of mappings, e.g. [{local_epochs: 1, rounds: 2000}, …]")
            points = tuple(self._settings(point, f"sweep → {i + 1}") for i, point in enumerate(listed))
            for i, point in enumerate(points):
                if point in points[:i] or not point:
                    raise self.error(f"sweep → {i + 1}", f"{point} is empty, or there twice")
            return points
        axes = self._settings(grid, "grid")
        for name, values in axes.items():
            self.distinct(values, f"grid → {name}", "a list of values, e.g. [1, 2, 3]")
        if (size := prod([len(values) for values in axes.values()])) > MOST_POINTS:
            raise self.error("grid", f"has {size:,} points, and at most {MOST_POINTS:,} are possible")
        return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values()))

    def _tune(self, given: Any, place: str) -> dict[str, list[Any]]:
        """Names of hyperparameters and the values to choose from."""
        grid = self._settings(given, place)
        for name, values in grid.items():
            self.distinct(values, f"{place} → {name}", "a list of values, e.g. [0.01, 0.1]")
            if name in NOT_TUNED | NOT_AN_AXIS:
                raise self.error(f"{place} → {name}", "cannot be tuned: only hyperparameters of training and of methods can")
        if (size := prod([len(values) for values in grid.values()])) > MOST_CANDIDATES:
            raise self.error(place, f"has {size:,} combinations, and at most {MOST_CANDIDATES} are possible")
        return grid

    def _settings(self, given: Any, place: str) -> dict[str, Any]:
        """Names and values of settings; what is set elsewhere is refused, the values are checked later."""
        settings = {name.replace("-", "_"): value for name, value in self.mapping(given, place).items()}
        for name, instead in SET_BY_THE_PLAN.items():
            if name in settings:
                raise self.error(place, f"{name} is set by the plan, for every seed: say how many under {instead}")
        return settings

    def _specs(self, document: dict[str, Any], key: str) -> Mappings:
        from fedfew.studies import output

        specs = self.list_of(document.get(key) or [], key, "a list of mappings, e.g. [{kind: methods}]")
        for i, spec in enumerate(specs):
            place = f"{key} → {i + 1}"
            if "kind" not in self.mapping(spec, place):
                raise self.error(place, f"{short(spec)} has no kind")
            try:
                output.check(key, spec)
            except ValueError as error:
                raise self.error(place, error) from None
        return tuple(dict(spec) for spec in specs)
