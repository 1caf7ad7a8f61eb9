"""Titles, captions and notes of tables. Every table states its protocol, its ± and what is missing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fedfew.studies import paper
from fedfew.studies.measures import AS_PUBLISHED, MEASURES
from fedfew.studies.protocol import PUBLISHED
from fedfew.studies.tables.table import TableData
from fedfew.studies.view import AXES, Run, View
from fedfew.util.spelling import counted

if TYPE_CHECKING:
    from fedfew.studies.figures.style import Drawing

Named = TypeVar("Named", "TableData", "Drawing")
PROTOCOLS = {
    "published": "Protocol published: the published code's presets, Dirichlet 0.5 drawn with 0.1 as that code does; FedFew is "
    "scored adapted (after the round's local training), all others served (the model as the server sends it).",
    "fair": "Protocol fair: settings as stated, every method scored both ways.",
    "tuned": "Protocol tuned: as fair, with each method's hyperparameters chosen per seed from a declared grid, by served "
    "score on validation samples held out from the training data.",
}
SCORED = {
    "served": "Served: the model as the server sends it.",
    "adapted": "Adapted: after the round's local training, of clients that took part in it.",
}
ROUNDS = {"last": "last round", "best": "best round on validation data"}  # by the setting keep
NOT_ALIKE = "† the paper scored this method the other way: FedFew adapted, all others served."
SHOWN_NOTES = 12


def name(spec: Mapping[str, Any], view: View, *more: str) -> str:
    """A name for a file."""
    parts = [spec.get("name") or spec["kind"], view.protocol, *(part for part in more if part != AS_PUBLISHED)]
    return re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))


def distinct(made: Sequence[Named]) -> list[Named]:
    """Tables or drawings, of which no two have the same name: the second of a name gets a 2 behind it."""
    taken: Counter[str] = Counter()
    found = []
    for one in made:
        taken[one.name] += 1
        found.append(one if taken[one.name] == 1 else replace(one, name=f"{one.name}-{taken[one.name]}"))
    return found


def title(spec: Mapping[str, Any], view: View, names: Sequence[str], score: str) -> str:
    measures = [MEASURES[measure] for measure in names]
    heads = ", ".join(measure.head for measure in measures)
    scored = [measure for measure in measures if measure.scored]
    what = f"test {score_name(view.runs)}, {heads}" if scored and names != ["jain"] else heads
    percent = ", %" if {measure.unit for measure in measures} == {"%"} else ""
    words = ", ".join(filter(None, [f"protocol {view.protocol}", score]))
    return f"{spec.get('title') or f'{view.study}: {what}{percent}'} ({words})"


def score_name(runs: Iterable[Mapping[str, Any]]) -> str:
    """What the scores of runs that are done are called: accuracy, R², …; score where they differ."""
    named = {run.get("score") or "accuracy" for run in runs if run["status"] == "done"}  # earlier versions do not name it
    return named.pop() if len(named) == 1 else "score"


def facts(runs: Iterable[Run]) -> str:
    """Clients, rounds and seeds of runs: 20 clients, 2000 rounds, 3 seeds."""
    runs = list(runs)
    seeds = len({run["seed"] for run in runs})
    parts = [_span([run[f"{noun}s"] for run in runs], noun) for noun in ("client", "round")]
    return ", ".join([*parts, counted(seeds, "seed")]) if runs else "no runs"


def which_round(runs: Iterable[Run]) -> str:
    """Of which round the scores are: with keep="best" of the best one on validation data."""
    kept = {json.loads(run["settings"] or "{}").get("keep", "last") for run in runs}
    return " or ".join(words for keep, words in ROUNDS.items() if keep in kept) or ROUNDS["last"]


def _span(values: Iterable[int | None], noun: str) -> str:
    known = sorted({value for value in values if value is not None})
    if len(known) == 1:
        return f"{known[0]} {noun}{'' if known[0] == 1 else 's'}"
    return f"{known[0]}–{known[-1]} {noun}s" if known else f"? {noun}s"


def caption(view: View, table: TableData, score: str) -> str:
    """What the numbers are."""
    cells = table.cells()
    parts = [
        f"{facts(view.runs)}; {which_round(view.runs)}.",
        PROTOCOLS.get(view.protocol, f"Protocol {view.protocol}."),
        SCORED.get(score, ""),
    ]
    clients, seeds = (any(getattr(c, kind) is not None for c in cells) for kind in ("over_clients", "over_seeds"))
    parts.append("±: standard deviation over clients (population; mean over seeds)." if clients else "")
    parts.append("(±): standard deviation over seeds (sample)." if seeds else "")
    parts.append("Bold: best of its column; underlined: second." if any(c.rank for c in cells) else "")
    if any(c.paper is not None for c in cells):
        own = "" if view.protocol == PUBLISHED else ", which is of one seed under the published protocol"
        parts.append(f"Below: the paper's number{own}, then ours minus the paper's.")
    return " ".join(filter(None, parts))


def notes(view: View, table: TableData, names: Sequence[str]) -> tuple[str, ...]:
    """What is missing and why, and where the paper's numbers are not quite comparable."""
    found = _missing(view, table, names)
    compared = [cell for cell in table.cells() if cell.paper is not None]
    found += [NOT_ALIKE] if any(not cell.paper_alike for cell in compared) else []
    found += _shorter(view) if compared else []
    return (*found, *_shares(view, names), *_ranges(view, names), *_remarks(view))


def _shares(view: View, names: Sequence[str]) -> list[str]:
    """Seconds of a run that was made in one stack with others are no seconds of a run alone."""
    packed = sum((run.get("packed") or 1) > 1 for run in view.runs)
    if not packed or not {"seconds", "seconds_per_round"} & set(names):
        return []
    return [f"Seconds of {packed} of {len(view.runs)} runs are shares: they were made in one stack with others."]


def _missing(view: View, table: TableData, names: Sequence[str]) -> list[str]:
    """A line for each reason and data, not for each of its measures."""
    places = [column for column in view.columns for _ in names]
    found: dict[tuple[str, str], dict[str, None]] = {}
    for label, cells in table.rows:
        for place, cell in zip(places, cells, strict=True):
            if cell.note not in ("", "has none", "not run"):
                found.setdefault((place, cell.note), {})[label] = None
    lines = [f"{_some(list(rows))}, {place}: {note}" for (place, note), rows in found.items()]
    more = [f"… and {len(lines) - SHOWN_NOTES} more."] if len(lines) > SHOWN_NOTES else []
    absent = sum(cell.note == "not run" for cell in table.cells())
    not_run = [f"Not run yet: {absent} of {counted(len(table.cells()), 'cell')}."] if absent else []
    return [*lines[:SHOWN_NOTES], *more, *not_run]


def _some(rows: Sequence[str]) -> str:
    return ", ".join(rows) if len(rows) <= 3 else counted(len(rows), "row")


def _remarks(view: View) -> list[str]:
    """Notes of the runs themselves, such as that their data were not whole."""
    noted = dict.fromkeys((run["column"], run["notes"]) for run in view.runs if run.get("notes"))
    return [remark(column, note) for column, note in noted][:SHOWN_NOTES]


def remark(column: str, note: str) -> str:
    """A run's note as a table shows it."""
    return f"{column}: {short_error(note)}"


def _shorter(view: View) -> list[str]:
    """The paper trained for longer (or shorter) than these runs."""
    differing: dict[tuple[int, int], list[str]] = {}
    for column in view.columns:
        if (theirs := paper.updates(column)) is None:
            continue
        of_column = {run["rounds"] * run["local_epochs"] for run in view.runs if run["column"] == column and run["rounds"]}
        for ours in sorted(of_column - {theirs}):
            differing.setdefault((ours, theirs), []).append(column)
    return [
        f"The paper trained for {counted(theirs, 'round')} × local epochs, these runs for {ours}: {', '.join(columns)}."
        for (ours, theirs), columns in differing.items()
    ]


def _ranges(view: View, names: Sequence[str]) -> list[str]:
    """What the paper gives for a whole sweep, as a range."""
    on_grid = {(line.row, axis) for line in view.lines for axis, _ in line.point}
    return [
        f"The paper ({r.where}): {r.row} on {r.column}, {MEASURES[r.measure].head} {r.low}–{r.high} "
        f"for {AXES.get(r.axis, r.axis)} in {', '.join(f'{value:g}' for value in r.at)}."
        for r in paper.ranges()
        if r.measure in names and r.column in view.columns and (r.row, r.axis) in on_grid
    ]


def short_error(error: str | None) -> str:
    """One line of it: the last of a traceback, else the first."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    line = (lines[-1] if lines[0].startswith("Traceback") else lines[0]) if lines else "no reason recorded"
    return line if len(line) <= 120 else line[:117] + "…"
