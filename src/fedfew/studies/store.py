"""The results of a study: three tables in parquet that DuckDB, pandas or pyarrow read, joined by ``key``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedfew.studies.folder import RunFolder
from fedfew.studies.measures import SCORES
from fedfew.studies.run_result import OVER_CLIENTS
from fedfew.util.files import DamagedFileError, write_atomically

NAMES = ("runs", "clients", "rounds")


_EARLIER = {"served_score": "served_accuracy", "adapted_score": "adapted_accuracy"}  # names in files of earlier versions


def _schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


_text, _whole, _real = pa.string(), pa.int64(), pa.float64()

RUNS = _schema(
    **dict.fromkeys(("study", "protocol", "column", "row", "point", "key", "status", "error"), _text),
    seed=_whole,
    dataset=_text,
    partition=_text,
    clients=_whole,
    model=_text,
    method=_text,
    models=_whole,
    mu=_real,
    rounds=_whole,
    local_epochs=_whole,
    batch_size=_whole,
    lr=_real,
    **dict.fromkeys(("settings", "fedfew", "torch", "python", "code", "host", "device", "engine", "precision", "started"), _text),
    seconds=_real,
    seconds_per_round=_real,
    score=_text,  # what the task's scores are: accuracy, R², micro-F1
    **{f"{score}_{name}": _real for score in SCORES for name in OVER_CLIENTS},
    **dict.fromkeys(("single_mean", "single_min"), _real),  # of the best single model, where a mixture is served
    **dict.fromkeys(("macro_f1", "auc", "g", "entropy", "largest", "alpha_cv"), _real),
    **dict.fromkeys(("models_in_use", "bytes_up", "bytes_down"), _whole),
    cost=_text,
    notes=_text,
    tuning=_text,
    packed=_whole,  # runs, itself included, that shared its stack: its seconds are a share of the stack's
)
CLIENTS = _schema(
    key=_text,
    **dict.fromkeys(("client", "train", "test", "group", "choice"), _whole),
    **dict.fromkeys(("served_score", "adapted_score", "served_loss", "adapted_loss", "macro_f1", "auc", "alpha"), _real),
    w=pa.list_(_real),
)
ROUNDS = _schema(
    key=_text,
    round=_whole,
    **{f"{score}_{name}": _real for name in ("mean", "min", "weighted") for score in SCORES},
    **dict.fromkeys(("g", "entropy", "largest", "alpha_cv"), _real),
    models_in_use=_whole,
    seconds=_real,
    **dict.fromkeys(("bytes_up", "bytes_down"), _whole),
)


@dataclass(frozen=True)
class Results:
    """One row per planned run, one per run and client, one per run and scored round."""

    runs: pa.Table
    clients: pa.Table
    rounds: pa.Table


def table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; what a row does not have is null."""
    listed = list(rows)

    def values(name: str) -> pa.Array:
        earlier = _EARLIER.get(name, name)
        return pa.array([row.get(name, row.get(earlier)) for row in listed], schema.field(name).type)

    return pa.table({name: values(name) for name in schema.names}, schema)


def collect(root: Path, plan: Iterable[Mapping[str, Any]], missing: Mapping[str, str] | None = None) -> Results:
    """The results of the planned runs so far: done, failed or missing, with a reason where there is one.

    plan: entries of ``plan.json``; missing: by data set, why it is not available.
    """
    runs, clients, rounds = [], [], []
    seen: set[str] = set()
    for entry in plan:
        folder = RunFolder.of(root, entry["key"])
        place = {name: entry[name] for name in ("study", "protocol", "column", "row", "key", "seed")}
        place["point"] = json.dumps(entry["point"], sort_keys=True)
        error = folder.error
        try:
            result = readable_result(folder)
        except DamagedFileError as damage:
            result, error = None, {"message": f"{damage}; the run is made again when the study is run"}
        if result is not None:
            runs.append(result["run"] | place | {"status": "done"})
            if entry["key"] not in seen:  # a run may have two places in one study
                clients += [{"key": entry["key"]} | row for row in result["clients"]]
                rounds += [{"key": entry["key"]} | row for row in result["rounds"]]
                seen.add(entry["key"])
        elif error is not None:
            runs.append(_planned(entry) | place | {"status": "failed", "error": error["message"]})
        else:
            why = (missing or {}).get(entry["settings"]["dataset"])
            runs.append(_planned(entry) | place | {"status": "missing", "error": why})
    return Results(table(runs, RUNS), table(clients, CLIENTS), table(rounds, ROUNDS))


def readable_result(folder: RunFolder) -> dict[str, Any] | None:
    """The result of a finished run, if the tables can hold it; None where it is not finished. Raises DamagedFileError."""
    result = folder.result
    if result is not None:
        try:
            for rows, schema in (([result["run"]], RUNS), (result["clients"], CLIENTS), (result["rounds"], ROUNDS)):
                table(rows, schema)
        except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError) as error:
            raise DamagedFileError(f"{folder.path / 'result.json'} is damaged ({error})") from None
    return result


def _planned(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a run that has not been made."""
    settings = dict(entry["settings"])
    own = settings["method_settings"]
    known = {name: value for name, value in settings.items() if name in RUNS.names}
    return known | {"models": own.get("models"), "mu": own.get("mu"), "settings": json.dumps(settings)}


def write(folder: Path, results: Results) -> None:
    """Write the three tables into a study's folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        contents = io.BytesIO()
        pq.write_table(getattr(results, name), contents)
        write_atomically(folder / f"{name}.parquet", contents.getvalue())


def read(folder: Path) -> Results:
    """The results in a study's folder."""
    absent = [name for name in NAMES if not (folder / f"{name}.parquet").is_file()]
    if absent:
        raise ValueError(f"there are no results in {folder} ({absent[0]}.parquet is not there); 'fedfew study run' makes them")
    runs, clients, rounds = (pq.read_table(folder / f"{name}.parquet") for name in NAMES)
    today = {earlier: name for name, earlier in _EARLIER.items()}
    return Results(runs, clients.rename_columns([today.get(name, name) for name in clients.column_names]), rounds)
