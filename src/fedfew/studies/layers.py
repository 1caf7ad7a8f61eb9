"""The settings of one run of a study, from its layers: the base, the column, the row and the point of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfew.methods.hyperparameters import hyper_parameters
from fedfew.studies import protocol as protocols
from fedfew.studies import scale as scaling
from fedfew.studies.module_lookup import check_named
from fedfew.studies.options import Options
from fedfew.studies.study import Study
from fedfew.training.from_settings import make_method
from fedfew.training.own_method import is_own
from fedfew.training.resolve import resolve
from fedfew.training.settings import RECOMMENDED, TYPES, Settings
from fedfew.util.spelling import unknown

Layer = Mapping[str, Any]


def settings_of(
    study: Study, protocol: str, column: str, row: str, point: dict[str, Any], options: Options
) -> tuple[Settings, tuple[str, ...]]:
    stated = study.base, study.columns[column], study.rows[row], point
    try:
        merged, changed = protocols.apply(protocol, with_data_defaults(_merged(*stated)))
        given = {"device": options.device, "data_dir": options.data_dir, "sample": options.sample}
        settings = resolve({name: value for name, value in given.items() if value is not None}, {}, merged)
        if scaling.is_smoke_test(options.scale):
            settings = scaling.smoke_test(settings)
        check(settings)
    except (ValueError, ImportError) as error:
        raise study.error(_blamed(*stated, column, row), error) from None
    return settings, changed


def _merged(base: Layer, column: Layer, row: Layer, point: Layer) -> dict[str, Any]:
    """The layers as one configuration file, the last wins; ``method`` is a mapping of all hyperparameters.

    A hyperparameter in the base or a column applies to the rows whose method has it. One in a row must be of the row's method.
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


def with_data_defaults(merged: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of the data set filled in, so that a protocol can change them and equal runs have equal settings."""
    from fedfew.data.prepared import is_prepared
    from fedfew.data.reading import CLIENTS, PARTITION
    from fedfew.data.sources import SOURCES

    dataset = merged.get("dataset", Settings.dataset)
    merged = RECOMMENDED.get(dataset, {}) | merged
    if is_prepared(dataset):
        return merged
    source = SOURCES.get(dataset)
    partition, clients = (source.partition, source.clients) if source else (PARTITION, CLIENTS)
    if merged.get("client") or (source is None and _has_folders_of_clients(dataset)):  # the data name their clients
        return merged
    natural = str(merged.get("partition", "")).startswith("by:")  # one client per value, unless clients is given
    defaults = {"partition": partition} if natural else {"partition": partition, "clients": clients}
    if source is None and merged.get("task") == "language-modelling":  # the files may have no labels to partition by
        del defaults["partition"]
    return defaults | merged


def _has_folders_of_clients(dataset: str) -> bool:
    """Is it a folder client/class/image? Then there is one client per folder unless a partition is given."""
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
    """The settings that apply to a row: those of a run, and those of its method.

    Planning a study does not import a method of the user's own: only the hyperparameters that its row names are known.
    """
    _, method = _apart(row)
    if is_own(method["name"]):
        return {*TYPES, *(name for name in method if name != "name"), "published"}
    return {*TYPES, *(hyperparameter.name for hyperparameter in hyper_parameters(method["name"]))}


def check(settings: Settings) -> None:
    """Refuse settings that would fail in training, as far as this can be checked without the data."""
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
    from fedfew.data import names

    if name not in names() and not name.startswith("hub:") and not (Path(name).suffix or len(Path(name).parts) > 1):
        raise unknown("data set", name, names())


def _blamed(base: Layer, column: Layer, row: Layer, point: Layer, column_name: str, row_name: str) -> str:
    """The place to name in an error: the first layer that is wrong by itself, or else their combination."""

    def wrong(layer: Layer) -> bool:
        try:
            check(resolve({}, {}, layer))
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
