"""A study's runs, one by one, each with all its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from fedfew.methods.hyperparameters import hyper_parameters
from fedfew.studies import protocol as protocols
from fedfew.studies import scale as scaling
from fedfew.studies import tuning
from fedfew.studies.module_lookup import check_named
from fedfew.studies.study import NOT_AN_AXIS, Study
from fedfew.training.own_method import is_own
from fedfew.training.settings import RECOMMENDED, TYPES, Settings, make_method, resolve
from fedfew.util.spelling import unknown

Layer = Mapping[str, Any]
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Options:
    """What a user asks of a study beyond its file."""

    protocols: tuple[str, ...] = ()  # (): those of the file
    seeds: int | None = None  # None: as many as the file says
    scale: float = 1.0
    only: tuple[str, ...] = ()
    sample: int | None = None  # keep only so many rows of every data set
    device: str | None = None
    data_dir: str | None = None

    def __post_init__(self) -> None:
        scaling.check(self.scale)
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"--seeds must be ≥ 1, not {self.seeds}")
        if self.sample is not None and self.sample < 2:
            raise ValueError(f"--sample must be ≥ 2, not {self.sample}")
        for name in self.protocols:
            if name not in protocols.PROTOCOLS:
                raise unknown("protocol", name, protocols.PROTOCOLS)

    @property
    def length(self) -> str:
        """What must not be mixed in one table."""
        if self.sample is not None:
            rows = f", {self.sample} rows of each data set"
        else:
            rows = f", a smoke test: {scaling.ROWS} rows per client" if scaling.is_smoke_test(self.scale) else ""
        return f"scale {self.scale:g}{rows}"

    def seeds_of(self, study: Study, protocol: str) -> range:
        return range(self.seeds or (1 if scaling.is_smoke_test(self.scale) else study.seeds[protocol]))


@dataclass(frozen=True)
class Cell:
    """A planned run: its place in the study, and all its settings."""

    study: str
    protocol: str
    column: str
    row: str
    point: dict[str, Any]  # values of the grid's axes
    seed: int
    settings: Settings
    changed: tuple[str, ...] = field(default=(), compare=False)  # what the protocol changed, in words
    grid: dict[str, list[Any]] = field(default_factory=dict)  # under the protocol tuned: hyperparameters to choose

    @cached_property
    def candidates(self) -> tuple[Settings, ...]:
        """What the grid gives to choose from; () where nothing is tuned."""
        return tuple(tuning.candidate(self.settings, values) for values in tuning.points(self.grid)) if self.grid else ()

    @cached_property
    def key(self) -> str:
        """The content address of the run: what is run in the same way has the same one, whichever study asks for it."""
        from fedfew.studies.key import run_key

        return run_key(self.settings, self.candidates)

    @property
    def label(self) -> str:
        at = "".join(f", {name} {value}" for name, value in self.point.items())
        return f"{self.column} / {self.row}{at} ({self.protocol}, seed {self.seed})"


def cells(study: Study, options: Options = Options()) -> list[Cell]:  # noqa: B008  # frozen
    """All runs of a study, in its order: protocol, column, row, point, seed. Raises where the settings of one make no sense."""
    _check_only(study, options.only)
    _check_axes(study)
    _check_size(study, options)
    planned = []
    for protocol in options.protocols or study.protocols:
        if protocol == protocols.TUNED and not (study.tune or study.row_tune):
            raise study.error("protocols", "tuned needs hyperparameters to choose from: write tune: {lr: [0.01, 0.1]}")
        seeds = options.seeds_of(study, protocol)
        for column, row in _chosen(study, options.only):
            for cell in _points(study, protocol, column, row, options):
                planned += [
                    replace(cell, seed=seed, settings=replace(cell.settings, seed=seed, data_seed=seed)) for seed in seeds
                ]
    return planned


def _points(study: Study, protocol: str, column: str, row: str, options: Options) -> list[Cell]:
    """A run for every point of the grid that means something to the row, seed 0."""
    try:
        own = axes_of(study.rows[row])
    except ValueError as error:
        raise study.error(f"rows → {row}", error) from None
    found: list[Cell] = []
    for whole in study.points:
        point = {name: value for name, value in whole.items() if name in own}
        if point in [cell.point for cell in found]:
            continue
        settings, changed = _settings(study, protocol, column, row, point, options)
        grid = _grid(study, row, own) if protocol == protocols.TUNED else {}
        found.append(_checked(study, Cell(study.name, protocol, column, row, point, 0, settings, changed, grid)))
    return [_scaled(cell, found, options.scale, "checkpoint_every" in _stated(study, cell)) for cell in found]


def _grid(study: Study, row: str, own: set[str]) -> dict[str, list[Any]]:
    """The hyperparameters to choose for a row: those of the study that mean something to it, and its own."""
    unknown_names = [name for name in study.row_tune.get(row, {}) if name not in own]
    if unknown_names:
        raise study.error(f"rows → {row} → tune", unknown("hyperparameter", unknown_names[0], sorted(own)))
    return {name: values for name, values in study.tune.items() if name in own} | study.row_tune.get(row, {})


def _checked(study: Study, cell: Cell) -> Cell:
    try:
        for settings in cell.candidates:
            _check(settings)
    except (ValueError, ImportError) as error:
        raise study.error(f"tune of rows → {cell.row}", error) from None
    return cell


def _stated(study: Study, cell: Cell) -> Mapping[str, Any]:
    return study.base | study.columns[cell.column] | study.rows[cell.row] | cell.point


def _scaled(cell: Cell, beside: list[Cell], scale: float, own_checkpoints: bool) -> Cell:
    """The cell with fewer rounds; its point then says how many these are."""

    def updates(of: Cell) -> int:
        return of.settings.rounds * of.settings.local_epochs

    epochs = {other.settings.local_epochs for other in beside if updates(other) == updates(cell)}
    settings = scaling.shortened(cell.settings, scaling.rounds(cell.settings, scale, epochs))
    if not own_checkpoints:
        settings = replace(settings, checkpoint_every=scaling.checkpoint_every(settings.rounds))
    point = {name: value for name, value in cell.point.items() if name not in NOT_AN_AXIS}
    if "rounds" in point:
        point["rounds"] = settings.rounds
    to_run = protocols.rounds_to_run(cell.protocol, settings.method, settings.rounds)
    if to_run != settings.rounds:
        changed = (*cell.changed, f"{to_run} rounds (stated {settings.rounds}): the last score has one more local epoch")
        cell, settings = replace(cell, changed=changed), replace(settings, rounds=to_run)
    return replace(cell, point=point, settings=settings)


# -- the settings of one run -------------------------------------------------------------------------------------------------


def _settings(
    study: Study, protocol: str, column: str, row: str, point: dict[str, Any], options: Options
) -> tuple[Settings, tuple[str, ...]]:
    stated = study.base, study.columns[column], study.rows[row], point
    try:
        merged, changed = protocols.apply(protocol, spelt_out(_merged(*stated)))
        given = {"device": options.device, "data_dir": options.data_dir, "sample": options.sample}
        settings = resolve({name: value for name, value in given.items() if value is not None}, {}, merged)
        if scaling.is_smoke_test(options.scale):
            settings = scaling.smoke_test(settings)
        _check(settings)
    except (ValueError, ImportError) as error:
        raise study.error(_blamed(*stated, column, row), error) from None
    return settings, changed


def _merged(base: Layer, column: Layer, row: Layer, point: Layer) -> dict[str, Any]:
    """The layers as one configuration file, the last wins; ``method`` is a mapping of all hyper-parameters.

    A method's hyper-parameter in the base or a column goes to the rows whose method has it; one in the row must be its own.
    """
    own = axes_of(row)
    above = {name: value for name, value in {**base, **column}.items() if name in own}
    rest, method = _apart(row)
    below = {**rest, **point}

    def loose(layer: Layer) -> dict[str, Any]:
        return {name: value for name, value in layer.items() if name not in TYPES}

    plain = {name: value for name, value in (above | below).items() if name in TYPES}
    return plain | {"method": loose(above) | method | loose(below)}


def _apart(row: Layer) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row's settings of a run, and its method as a mapping."""
    method = row["method"]
    named = dict(method) if isinstance(method, Mapping) else {"name": method}
    if not isinstance(named.get("name"), str):
        raise ValueError(f"method is {method!r}: write method: fedavg, or method: {{name: fedfew, models: 3}}")
    rest = {name: value for name, value in row.items() if name != "method"}
    return rest, {str(name).replace("-", "_"): value for name, value in named.items()}


def spelt_out(merged: dict[str, Any]) -> dict[str, Any]:
    """With what suits the data set said aloud, so that a protocol can change it and equal runs have equal settings."""
    from fedfew.data.prepared import is_prepared
    from fedfew.data.reading import CLIENTS
    from fedfew.data.sources import SOURCES

    dataset = merged.get("dataset", Settings.dataset)
    merged = RECOMMENDED.get(dataset, {}) | merged
    if is_prepared(dataset):
        return merged
    source = SOURCES.get(dataset)
    partition, clients = (source.partition, source.clients) if source else ("dirichlet:0.5", CLIENTS)
    if merged.get("client") or (source is None and _has_folders_of_clients(dataset)):  # the data name their clients
        return merged
    natural = str(merged.get("partition", "")).startswith("by:")  # one client a value, unless said otherwise
    defaults = {"partition": partition} if natural else {"partition": partition, "clients": clients}
    return defaults | merged


def _has_folders_of_clients(dataset: str) -> bool:
    """Is it a folder client/class/image? Then there is one client per folder unless a partition is given."""
    from pathlib import Path

    from fedfew.data import DataError
    from fedfew.data.finding import find
    from fedfew.data.raw import ColumnChoice

    if not Path(dataset).expanduser().is_dir():
        return False
    try:
        return find(dataset, None, ColumnChoice(), {"size": None}).client is not None
    except DataError:  # reported where the data are looked up
        return False


def axes_of(row: Layer) -> set[str]:
    """The settings that mean something to a row: those of a run, and those of its method.

    A method of the user's own is not imported to plan a study: of its hyperparameters those count that its row names.
    """
    _, method = _apart(row)
    if is_own(method["name"]):
        return {*TYPES, *(name for name in method if name != "name"), "published"}
    return {*TYPES, *(hyperparameter.name for hyperparameter in hyper_parameters(method["name"]))}


def _check(settings: Settings) -> None:
    """What would otherwise fail only in training, as far as it can be known without the data."""
    from fedfew.data.partition_spec import PartitionSpec
    from fedfew.models import MODELS
    from fedfew.util.devices import device_named

    if is_own(settings.method):
        check_named(settings.method, "method")
    else:
        method = make_method(settings)
    if ":" in settings.model:
        check_named(settings.model, "model")
    elif settings.model not in MODELS:
        raise unknown("model", settings.model, MODELS)
    if settings.partition is not None:
        PartitionSpec.parse(settings.partition)
    device_named(settings.device)
    _check_dataset(settings.dataset)
    if settings.clients is not None and not is_own(settings.method):
        method.check_against(settings.clients)


def _check_dataset(name: str) -> None:
    from pathlib import Path

    from fedfew.data import names

    if name not in names() and not name.startswith("hub:") and not (Path(name).suffix or len(Path(name).parts) > 1):
        raise unknown("data set", name, names())


def _blamed(base: Layer, column: Layer, row: Layer, point: Layer, column_name: str, row_name: str) -> str:
    """Where the error lies: the first layer that is wrong by itself, or else their combination."""

    def wrong(layer: Layer) -> bool:
        try:
            _check(resolve({}, {}, layer))
        except (ValueError, ImportError):
            return True
        return False

    def plain(layer: Layer) -> dict[str, Any]:
        return {name: value for name, value in layer.items() if name in TYPES}

    places = {"base": plain(base), f"columns → {column_name}": plain(column), f"rows → {row_name}": row}
    for place, layer in places.items():
        if wrong(layer):
            return place
    at = "".join(f", {name} {value!r}" for name, value in point.items())
    return f"columns → {column_name} with rows → {row_name}{at}"


# -- which of them -----------------------------------------------------------------------------------------------------------


def _chosen(study: Study, only: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for column in study.columns:
        for row in study.rows:
            if not only or any(_matches(pattern, column, row) for pattern in only):
                yield column, row


def _matches(pattern: str, column: str, row: str) -> bool:
    """``column/row``, or either of them; * and ? stand for anything, and case does not matter."""
    lower, column, row = pattern.lower(), column.lower(), row.lower()
    if "/" not in lower:
        return fnmatchcase(column, lower) or fnmatchcase(row, lower)
    for_column, _, for_row = lower.partition("/")
    return fnmatchcase(column, for_column or "*") and fnmatchcase(row, for_row or "*")


def _check_only(study: Study, only: tuple[str, ...]) -> None:
    for pattern in only:
        if not any(_matches(pattern, column, row) for column in study.columns for row in study.rows):
            raise unknown(f"column or row of {study.name} that fits --only", pattern, [*study.columns, *study.rows])


def _check_tune(study: Study, known: set[str]) -> None:
    for name in study.tune:
        if name not in known:
            raise study.error("tune", unknown("hyperparameter of a method in this study,", name, sorted(known)))


def _check_size(study: Study, options: Options) -> None:
    """A study that could never be run is refused before it is planned."""
    seeds = sum(len(options.seeds_of(study, protocol)) for protocol in options.protocols or study.protocols)
    places = sum(1 for _ in _chosen(study, options.only)) * len(study.points)
    if seeds * places > MOST_RUNS:
        raise study.error("the file", f"makes up to {seeds * places:,} runs, and at most {MOST_RUNS:,} are possible")


def _check_axes(study: Study) -> None:
    """A setting that means nothing to any row would be left out without a word."""
    try:
        known = set().union(*(axes_of(row) for row in study.rows.values()))
    except ValueError:
        return  # a row that is wrong is answered with its name, when its settings are put together
    axes = dict.fromkeys(name for point in study.points for name in point)
    for name in axes:
        if name in ("dataset", "partition", "clients", "method"):
            raise study.error(f"grid → {name}", f"{name} is no axis: the data are named by columns, the methods by rows")
    _check_tune(study, known)
    places = {"base": study.base} | {f"columns → {name}": column for name, column in study.columns.items()}
    for place, layer in (places | {"grid or sweep": axes}).items():
        for name in layer:
            if name not in known:
                raise study.error(place, unknown("setting of a run, or of a method in this study,", name, sorted(known)))
            if name == "method":
                raise study.error(place, "the method is named by the rows")
