"""A study's runs, one by one, each with all its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedfew.studies import protocol as protocols
from fedfew.studies import scale as scaling
from fedfew.studies import tuning
from fedfew.studies.layers import axes_of, check, settings_of
from fedfew.studies.options import Options
from fedfew.studies.study import NOT_AN_AXIS, Study
from fedfew.training.settings import Settings
from fedfew.util.spelling import counted, unknown

MOST_RUNS = 10_000


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
        """The settings to choose from; () if nothing is tuned."""
        return tuple(tuning.candidate(self.settings, values) for values in tuning.points(self.grid)) if self.grid else ()

    @cached_property
    def key(self) -> str:
        """The content address of the run: equal runs have the same one, in whichever study."""
        from fedfew.studies.key import run_key

        return run_key(self.settings, self.candidates)

    @property
    def label(self) -> str:
        at = "".join(f", {name} {value}" for name, value in self.point.items())
        return f"{self.column} / {self.row}{at} ({self.protocol}, seed {self.seed})"


def cells(study: Study, options: Options = Options()) -> list[Cell]:  # noqa: B008  # frozen
    """All runs of a study, in its order: protocol, column, row, point, seed. Raises if the settings of one are invalid."""
    options.check_only(study)
    _check_axes(study)
    _check_size(study, options)
    planned = []
    for protocol in options.protocols or study.protocols:
        if protocol == protocols.TUNED and not (study.tune or study.row_tune):
            raise study.error("protocols", "tuned needs hyperparameters to choose from: write tune: {lr: [0.01, 0.1]}")
        seeds = options.seeds_of(study, protocol)
        for column, row in options.selected(study):
            for cell in _points(study, protocol, column, row, options):
                planned += [
                    replace(cell, seed=seed, settings=replace(cell.settings, seed=seed, data_seed=seed)) for seed in seeds
                ]
    return planned


def _points(study: Study, protocol: str, column: str, row: str, options: Options) -> list[Cell]:
    """One run, with seed 0, for every point of the grid that applies to the row."""
    try:
        own = axes_of(study.rows[row])
    except ValueError as error:
        raise study.error(f"rows → {row}", error) from None
    found: list[Cell] = []
    for whole in study.points:
        point = {name: value for name, value in whole.items() if name in own}
        if point in [cell.point for cell in found]:
            continue
        settings, changed = settings_of(study, protocol, column, row, point, options)
        grid = _grid(study, row, own) if protocol == protocols.TUNED else {}
        found.append(_checked(study, Cell(study.name, protocol, column, row, point, 0, settings, changed, grid)))
    return [_scaled(cell, found, options.scale, "checkpoint_every" in _stated(study, cell)) for cell in found]


def _grid(study: Study, row: str, own: set[str]) -> dict[str, list[Any]]:
    """The hyperparameters to choose for a row: those of the study that apply to it, and its own."""
    unknown_names = [name for name in study.row_tune.get(row, {}) if name not in own]
    if unknown_names:
        raise study.error(f"rows → {row} → tune", unknown("hyperparameter", unknown_names[0], sorted(own)))
    return {name: values for name, values in study.tune.items() if name in own} | study.row_tune.get(row, {})


def _checked(study: Study, cell: Cell) -> Cell:
    try:
        for settings in cell.candidates:
            check(settings)
    except (ValueError, ImportError) as error:
        raise study.error(f"tune of rows → {cell.row}", error) from None
    return cell


def _stated(study: Study, cell: Cell) -> Mapping[str, Any]:
    return study.base | study.columns[cell.column] | study.rows[cell.row] | cell.point


def _scaled(cell: Cell, beside: list[Cell], scale: float, own_checkpoints: bool) -> Cell:
    """The cell with its number of rounds scaled, in its point as well."""

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
        rounds = f"{counted(to_run, 'round')} (stated {settings.rounds})"
        changed = (*cell.changed, f"{rounds}: the last score has one more local epoch")
        cell, settings = replace(cell, changed=changed), replace(settings, rounds=to_run)
    return replace(cell, point=point, settings=settings)


def _check_tune(study: Study, known: set[str]) -> None:
    for name in study.tune:
        if name not in known:
            raise study.error("tune", unknown("hyperparameter of a method in this study,", name, sorted(known)))


def _check_no_axis_is_tuned(study: Study, axes: Iterable[str]) -> None:
    """The value that is chosen would replace that of the point: rows "K = 2" and "K = 3" would show one and the same run."""
    places = {"tune": study.tune} | {f"rows → {row} → tune": values for row, values in study.row_tune.items()}
    for place, tuned in places.items():
        for name in axes:
            if name in tuned:
                raise study.error(
                    f"{place} → {name}", f"{name} is in the grid or sweep, too: compare its values there, or have one chosen here"
                )


def _check_size(study: Study, options: Options) -> None:
    """Refuse a study with too many runs before planning it."""
    seeds = sum(len(options.seeds_of(study, protocol)) for protocol in options.protocols or study.protocols)
    places = sum(1 for _ in options.selected(study)) * len(study.points)
    if seeds * places > MOST_RUNS:
        raise study.error("the file", f"makes up to {seeds * places:,} runs, and at most {MOST_RUNS:,} are possible")


def _check_axes(study: Study) -> None:
    """Refuse a setting that applies to no row: it would be ignored silently."""
    try:
        known = set().union(*(axes_of(row) for row in study.rows.values()))
    except ValueError:
        return  # the error names the row when its settings are put together
    axes = dict.fromkeys(name for point in study.points for name in point)
    for name in axes:
        if name in ("dataset", "partition", "clients", "method"):
            raise study.error(f"grid → {name}", f"{name} is no axis: the data are named by columns, the methods by rows")
    _check_tune(study, known)
    _check_no_axis_is_tuned(study, axes)
    places = {"base": study.base} | {f"columns → {name}": column for name, column in study.columns.items()}
    for place, layer in (places | {"grid or sweep": axes}).items():
        for name in layer:
            if name not in known:
                raise study.error(place, unknown("setting of a run, or of a method in this study,", name, sorted(known)))
            if name == "method":
                raise study.error(place, "the method is named by the rows")
