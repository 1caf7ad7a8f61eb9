"""Tables for a terminal, and JSON for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from fedfew.adapters import TrainedPart
from fedfew.evaluation.metrics import summarise
from fedfew.report import SCORES, across_seeds, last_scores, score_name, seconds, single_scores, weights_at
from fedfew.util.printable import printable, shortened
from fedfew.util.spelling import number

if TYPE_CHECKING:
    from fedfew.evaluation.costs import Cost
    from fedfew.training.run import Run

BOX = box.SIMPLE_HEAD
WIDEST = 10_000  # characters of a line
WORDS = ("score",)  # columns that hold words


def percent(value: float) -> str:
    return number(100 * value, ".1f")


def plus_minus(value: float, spread: float) -> str:
    return percent(value) if math.isnan(spread) else f"{percent(value)} ± {percent(spread)}"


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout; what is not a number becomes null."""
    print(json.dumps(_jsonable(document), indent=1, ensure_ascii=False, allow_nan=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def empty(title: str, *columns: str, caption: str | None = None) -> Table:
    """A table in the common style: the first column is text, the others are numbers, apart from those in WORDS."""
    title = escape(printable(title))
    table = Table(title=title, caption=caption, box=BOX, pad_edge=False, title_justify="left", caption_justify="left")
    for position, column in enumerate(columns):
        table.add_column(
            column, justify="left" if position == 0 or column in WORDS else "right", no_wrap=position > 0, overflow="fold"
        )
    return table


def show(console: Console, *tables: Table) -> None:
    """Print tables of :func:`empty` whole: of one that is wider than the console Rich would cut numbers' last digits. Headings of
    several words are put on several lines first."""
    for table in tables:
        width = console.width
        if _needed(console, table) > width:
            for column in table.columns[1:]:
                column.header = str(column.header).replace(" ", "\n")
        console.width = max(width, _needed(console, table))
        console.print(table)
        console.width = width


def _needed(console: Console, table: Table) -> int:
    """The width of the whole table, whatever that of the console."""
    return Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum


def run_summary(run: Run, final: Mapping[str, Sequence[float | None]]) -> Table:
    """A run's scores over clients; ``final`` are those of the served models that were computed once, when the run ended."""
    at = f"round {run.round}" if run.round_in_use == run.round else f"round {run.round_in_use} (the best) of {run.round}"
    part = [f"{name} {name_cell(value)}" for name, value in TrainedPart.recorded(run.settings).document().items()]
    title = f"{', '.join([run.settings['method']['name'], *part, at])}: test scores over clients, %"
    weights = ", ".join(_weight(run, name, value) for name, value in weights_at(run.history, run.scored_at).items())
    single = single_scores(run)
    if single is not None:
        models = run.scored("mixture").shape[1]
        weights = f"served: a mixture, a prediction runs {models} models. single: the best of them alone, one model. {weights}"
    weights = ". ".join(filter(None, [_by_samples(run), weights]))
    title += "; MAE and RMSE in units of the target" if "mae" in final else ""
    title += "; perplexity as it is" if "perplexity" in final else ""
    if "epsilon" in run.history.columns:
        weights = ", ".join(
            filter(None, [weights, f"ε {float(run.history.last('epsilon')):.3g} at δ {run.settings['dp_delta']:g}"])
        )
    table = empty(title, "score", "mean ± std", "worst client", "worst 10 %", "Jain's index", caption=weights)
    shown = SCORES if single is None else (SCORES[0], "single", *SCORES[1:])  # single right below what is served
    scores = {f"{score} {score_name(run)}": run.scores(score) for score in shown}
    scores |= {f"served {FINAL[name]}": np.array(numbers, dtype=float) for name, numbers in final.items() if name in FINAL}
    for name, values in scores.items():
        summary = summarise(values)
        worst = f"{percent(summary.min)}{_in_brackets(worst_client(run, values))}"
        mean, fairness = plus_minus(summary.mean, summary.std), number(summary.jain, ".3f")
        table.add_row(name, mean, worst, percent(summary.worst_tenth), fairness)
    for name, numbers in final.items():
        if name in ERRORS:
            errors = np.array(numbers, dtype=float)
            summary = summarise(errors, higher_is_better=False)
            mean, std, most, tenth = (number(v, ".4g") for v in (summary.mean, summary.std, summary.max, summary.worst_tenth))
            worst = f"{most}{_in_brackets(worst_client(run, -errors))}"
            table.add_row(f"served {ERRORS[name]}", f"{mean} ± {std}", worst, tenth, number(summary.jain, ".3f"))
    return table


def _weight(run: Run, name: str, value: float) -> str:
    """A weight diagnostic; the entropy with that of equal weights, where no model specialises."""
    most = f" (equal weights: {math.log(run.scored('w').shape[1]):.3g})" if name == "entropy" else ""
    return f"{WEIGHTS[name]} {value:.3g}{most}"


def _by_samples(run: Run) -> str:
    """The means over clients that count by their test samples, as other programs report them; "" where that is no difference."""
    if len(set(run.settings["federation"]["test_samples"])) < 2:
        return ""
    means = {score: summary.weighted_mean for score, summary in last_scores(run).items()}
    return f"means weighted by test samples: {', '.join(f'{s} {percent(m)}' for s, m in means.items() if m is not None)}"


def worst_client(run: Run, values: NDArray[Any]) -> str | None:
    """The name of the client with the lowest value; None where clients have no names, or none has a value."""
    known = ~np.isnan(values)
    return run.data.client_name(int(np.where(known, values, np.inf).argmin())) if run.data.client_names and known.any() else None


def name_cell(text: str) -> str:
    """A name from the data for a table: not too long, and steering neither the terminal nor rich."""
    return escape(shortened(printable(text)))


def _in_brackets(*names: str | None) -> str:
    found = [name_cell(name) for name in dict.fromkeys(names) if name is not None]
    return f" ({', '.join(found[:2])}{', …' if len(found) > 2 else ''})" if found else ""


FINAL = {"macro_f1": "macro-F1", "auc": "AUC", "subset_accuracy": "subset accuracy"}
ERRORS = {"mae": "MAE", "rmse": "RMSE", "perplexity": "perplexity"}  # no percentages; lower is better
WEIGHTS = {"entropy": "entropy of w", "largest": "maximum of w", "alpha_cv": "variation of α", "models_in_use": "models in use"}


def clients(run: Run, about: Mapping[str, Sequence[int]]) -> Table:
    """Client by client: true group and training samples (where known), the model used, both scores."""
    known = {name: about[key] for name, key in (("group", "groups"), ("samples", "train")) if key in about}
    table = empty(f"clients ({score_name(run)} in %)", "client", *known, "model", *SCORES)
    last = {score: run.scores(score) for score in SCORES}
    for i, model in enumerate(run.scored("choice").tolist()):
        table.add_row(
            name_cell(run.data.client_name(i)),
            *(str(column[i]) for column in known.values()),
            str(model) if model >= 0 else "–",
            *(percent(last[s][i]) for s in SCORES),
        )
    return table


def comparison(runs: Mapping[str, Sequence[Run]], title: str) -> Table:
    """Methods compared: two rows each, its two scores over its seeds. The best means and worst clients are bold."""
    several = max(map(len, runs.values())) > 1
    kept_best = any(run.settings.get("keep") == "best" for row in runs.values() for run in row)
    over_seeds = {"± seeds": "std_over_seeds"} if several else {}
    columns = {"mean": "mean"} | over_seeds | {"± clients": "std_over_clients", "worst client": "worst"}
    caption = (
        "served: the model as the server sends it. adapted: after the round's local training, of clients that "
        "took part in it. "
        f"{'Best round on validation data' if kept_best else 'Last round'}, mean over clients"
        f"{' and seeds' if several else ''}; ± is one standard deviation. Seconds of training per run."
    )
    rows = {label: across_seeds(row) for label, row in runs.items()}
    if any(math.isinf(row[score].mean) for row in rows.values() for score in SCORES):
        caption += " −∞: training diverged there; lower lr, or standardise the targets."
    called = score_name(next(iter(runs.values()))[0])
    table = empty(f"{title}: test {called}, %", "method", "score", *columns, "seconds", caption=caption)
    best = {(s, c): max(getattr(row[s], c) for row in rows.values()) for s in SCORES for c in ("mean", "worst")}
    for label, row in rows.items():
        for score in SCORES:
            values = {column: getattr(row[score], column) for column in columns.values()}
            is_best = {column: best.get((score, column)) == value for column, value in values.items()}
            cells = [f"[bold]{percent(v)}[/bold]" if is_best[column] else percent(v) for column, v in values.items()]
            cells[-1] += _in_brackets(*(worst_client(run, run.scores(score)) for run in runs[label]))
            first = score == SCORES[0]
            spent = f"{sum(map(seconds, runs[label])) / len(runs[label]):.1f}"
            table.add_row(label if first else "", score, *cells, spent if first else "")
    return table


def costs(of: Mapping[str, Cost]) -> Table:
    """The cost of a round per client, and what is stored where."""
    table = empty(
        "costs of a round",
        *("method", "MB up", "MB down", "steps", "server", "client", "predict"),
        caption="MB and optimiser steps: of one client in one round. server, client, predict: how many models the server stores, "
        "a client keeps from round to round, and a client runs to predict one sample.",
    )
    for label, cost in of.items():
        table.add_row(
            label,
            *(f"{count / 1e6:.3g}" for count in (cost.bytes_up, cost.bytes_down)),
            *(f"{count:.4g}" for count in (cost.steps, cost.server_models, cost.client_models, cost.inference_passes)),
        )
    return table
