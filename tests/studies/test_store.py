"""Results: the three tables, their numbers, and how they are queried."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import fedfew
from fedfew.studies import execution, run_result, store
from fedfew.studies.folder import RunFolder, StoredPlan, write_plan
from fedfew.studies.options import Options
from fedfew.studies.plan import Cell, cells
from fedfew.studies.worker import Worker
from fedfew.training.from_settings import make_federation, training_arguments
from fedfew.util.files import DamagedFileError
from tests.studies.small import made, study

# fmt: off
RUNS = [
    "study", "protocol", "column", "row", "point", "key", "status", "error", "seed", "dataset", "partition", "clients",
    "model", "method", "models", "mu", "rounds", "local_epochs", "batch_size", "lr", "settings", "fedfew", "torch", "python",
    "code", "host", "device", "engine", "precision", "started", "seconds", "seconds_per_round", "score", "served_mean",
    "served_std", "served_min", "served_max", "served_worst_tenth", "served_jain", "served_weighted_mean", "adapted_mean",
    "adapted_std", "adapted_min", "adapted_max", "adapted_worst_tenth", "adapted_jain", "adapted_weighted_mean", "single_mean",
    "single_min",
    "macro_f1", "auc", "g", "entropy", "largest", "alpha_cv", "models_in_use", "bytes_up", "bytes_down", "cost", "notes",
    "tuning", "packed",
]
CLIENTS = [
    "key", "client", "train", "test", "group", "choice", "served_score", "adapted_score", "served_loss",
    "adapted_loss", "macro_f1", "auc", "alpha", "w",
]
ROUNDS = [
    "key", "round", "served_mean", "adapted_mean", "served_min", "adapted_min", "served_weighted", "adapted_weighted", "g",
    "entropy", "largest", "alpha_cv", "models_in_use", "seconds", "bytes_up", "bytes_down",
]
# fmt: on


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Cell]]:
    """FedAvg and FedFew, two seeds, and a run that failed, in a folder."""
    root = tmp_path_factory.mktemp("studies")
    rows = {"FedAvg": {"method": "fedavg"}, "FedFew": {"method": {"name": "fedfew", "models": 2}}}
    found = study(seeds=2, rows=rows | {"Broken": {"method": "fedavg", "sample": 5000}})
    planned = made(found, root)
    plan, _ = write_plan(root / "tiny", found.text, "scale 1", planned, {})
    store.write(root / "tiny", store.collect(root, plan.cells))
    return root, planned


@pytest.fixture
def results(finished) -> store.Results:
    return store.read(finished[0] / "tiny")


def rows(table: pa.Table, **where) -> list[dict]:
    return [row for row in table.to_pylist() if all(row[name] == value for name, value in where.items())]


def test_the_columns_are_those_that_everybody_counts_on(results):
    assert results.runs.schema.names == RUNS
    assert results.clients.schema.names == CLIENTS
    assert results.rounds.schema.names == ROUNDS
    assert results.clients.schema.field("w").type == pa.list_(pa.float64())
    assert (len(results.runs), len(results.clients), len(results.rounds)) == (6, 4 * 3, 4 * 3)


def test_the_numbers_are_those_of_the_run(finished, results):
    """Against the same run, trained here."""
    cell = next(cell for cell in finished[1] if cell.row == "FedFew" and cell.seed == 1)
    federation, _ = make_federation(cell.settings)
    run = fedfew.train(federation, **training_arguments(cell.settings))
    history = run.history
    (row,) = rows(results.runs, key=cell.key)
    served, adapted = history.served_accuracy[-1].astype(float), history.adapted_accuracy[-1].astype(float)
    assert row["served_mean"] == pytest.approx(served.mean())
    assert row["served_std"] == pytest.approx(served.std())
    assert (row["served_min"], row["served_max"]) == (pytest.approx(served.min()), pytest.approx(served.max()))
    assert row["served_worst_tenth"] == pytest.approx(served.min())  # a tenth of three clients is one
    assert row["adapted_jain"] == pytest.approx(adapted.sum() ** 2 / (3 * (adapted**2).sum()))
    samples = federation.test.count.numpy()
    assert row["adapted_weighted_mean"] == pytest.approx((samples * adapted).sum() / samples.sum())
    w, alpha = history.w[-1].astype(float), history.alpha[-1].astype(float)
    assert row["entropy"] == pytest.approx(-(w * np.log(w)).sum(1).mean(), rel=1e-5)
    assert row["largest"] == pytest.approx(w.max(1).mean())
    assert row["alpha_cv"] == pytest.approx(alpha.std() / alpha.mean(), rel=1e-5)
    assert row["g"] == pytest.approx(float(history.g[-1]))
    assert row["bytes_up"] == history.bytes_up[-1]
    assert json.loads(row["cost"])["server_models"] == 2
    assert (row["models"], row["mu"], row["method"], row["engine"], row["device"]) == (2, 0.2, "fedfew", "sequential", "cpu")
    assert json.loads(row["settings"])["method"] == run.method.settings()
    assert (row["seed"], row["study"], row["protocol"], row["column"], row["point"]) == (1, "tiny", "fair", "iid", "{}")
    assert (row["code"], row["torch"], row["fedfew"]) == ("abc", run.settings["torch"], fedfew.__version__)
    clients = rows(results.clients, key=cell.key)
    assert [c["served_score"] for c in clients] == pytest.approx(served)
    assert [c["choice"] for c in clients] == run.choice.tolist()
    assert [c["train"] for c in clients] == federation.train.count.tolist()
    np.testing.assert_allclose([c["w"] for c in clients], w)
    rounds = rows(results.rounds, key=cell.key)
    assert [r["round"] for r in rounds] == [1, 2, 3]
    assert [r["adapted_mean"] for r in rounds] == pytest.approx(history.adapted_accuracy.mean(1))
    assert [r["g"] for r in rounds] == pytest.approx(history.g)


def test_what_a_method_does_not_have_is_null(finished, results):
    (row,) = rows(results.runs, row="FedAvg", seed=0)
    assert [row[name] for name in ("models", "mu", "g", "entropy", "largest", "alpha_cv", "error")] == [None] * 7
    client = rows(results.clients, key=row["key"])[0]
    assert (client["alpha"], client["w"], client["group"]) == (None, None, None)
    for table in (results.runs, results.clients, results.rounds):
        for name in table.schema.names:
            if pa.types.is_floating(table.schema.field(name).type):
                assert not any(value is not None and math.isnan(value) for value in table[name].to_pylist()), name


def test_a_failed_run_has_a_row_with_its_error_and_what_was_planned(results):
    failed = rows(results.runs, status="failed")
    assert {row["row"] for row in failed} == {"Broken"}
    assert "there are only 1797 rows" in failed[0]["error"]
    assert (failed[0]["dataset"], failed[0]["rounds"], failed[0]["served_mean"]) == ("digits", 3, None)


def test_a_run_that_was_not_made_is_missing_with_a_reason_where_its_data_are(tmp_path):
    planned = cells(study(columns={"a": {"dataset": "digits"}, "b": {"dataset": "kvasir"}}))
    plan, _ = write_plan(tmp_path / "tiny", "", "scale 1", planned, {"kvasir": "it is nowhere"})
    found = store.collect(tmp_path, plan.cells, plan.missing)
    told = {(row["column"], row["status"], row["error"]) for row in found.runs.to_pylist()}
    assert told == {("a", "missing", None), ("b", "missing", "it is nowhere")}
    assert {row["models"] for row in found.runs.to_pylist()} == {None, 2}


def test_a_run_in_two_places_has_two_rows_but_its_clients_once(finished):
    root, _ = finished
    found = study(name="twice", rows={"A": {"method": "fedavg"}, "B": {"method": {"name": "fedavg", "published": True}}})
    plan, _ = write_plan(root / "twice", found.text, "scale 1", cells(found), {})
    results = store.collect(root, plan.cells)
    assert [row["row"] for row in results.runs.to_pylist()] == ["A", "B"]
    assert len(set(results.runs["key"].to_pylist())) == 1
    assert len(results.clients) == 3


def test_where_there_is_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"there are no results in .*runs\.parquet is not there"):
        store.read(tmp_path)
    with pytest.raises(ValueError, match="the study tiny has not been run in"):
        execution.collect_results(tmp_path, "tiny")


def test_pieces_of_a_study_are_shown_together_but_lengths_are_not_mixed(finished, tmp_path):
    found = study()
    first, second = (cells(found, Options(only=(row,))) for row in ("FedAvg", "FedFew"))
    write_plan(tmp_path, found.text, "scale 1", first, {})
    plan, dropped = write_plan(tmp_path, found.text, "scale 1", second, {})
    assert ([entry["row"] for entry in plan.cells], dropped) == (["FedAvg", "FedFew"], None)
    plan, _ = write_plan(tmp_path, found.text, "scale 1", second, {})
    assert len(plan.cells) == 2
    plan, dropped = write_plan(tmp_path, found.text, "scale 0.5", first, {})
    assert ([entry["row"] for entry in plan.cells], dropped) == (["FedAvg"], "scale 1")
    assert StoredPlan.read(tmp_path) == plan


def test_half_written_lines_and_damaged_files(tmp_path):
    folder = RunFolder(tmp_path)
    folder.record_attempt(event="begun", when="now", pid=1)
    with open(tmp_path / "attempts.jsonl", "a") as file:
        file.write('{"event": "beg\n[]\n{}\n{"event": "ended", "when": "", "pid": 1, "seconds": "many"}\n{"event": "beg')
    folder.record_attempt(event="begun", when="now", pid=2)
    assert [attempt["pid"] for attempt in folder.attempts] == [1, 2]
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"result\.json is damaged"):
        _ = folder.result
    (tmp_path / "error.json").write_text('{"message": 3}')
    assert folder.error is None


def test_a_damaged_plan_is_replaced_and_said_so(tmp_path):
    found = study()
    for damage in ("{", "[]", '{"length": "scale 1"}'):
        (tmp_path / "plan.json").write_text(damage)
        with pytest.raises(DamagedFileError, match=r"plan\.json is damaged"):
            StoredPlan.read(tmp_path)
        plan, dropped = write_plan(tmp_path, found.text, "scale 1", cells(found), {})
        assert dropped == "the damaged file plan.json"
        assert StoredPlan.read(tmp_path) == plan


def test_groups_and_notes_are_kept(tmp_path):
    found = study(
        columns={"turned": {"dataset": "digits", "partition": "rotation", "clients": 4}}, rows={"R": {"method": "fedavg"}}
    )
    (cell,) = made(found, tmp_path)
    result = RunFolder.of(tmp_path, cell.key).result
    assert [client["group"] for client in result["clients"]] == [0, 1, 2, 3]
    assert result["run"]["notes"] == "only 80 rows of the data set"
    (cell,) = made(study(base={"sample": None, "rounds": 1}, rows={"R": {"method": "fedavg"}}), tmp_path)
    assert RunFolder.of(tmp_path, cell.key).result["run"]["notes"] is None


def test_clients_that_took_no_part_have_no_adapted_score(tmp_path):
    (cell,) = made(study(base={"participation": 0.4}, rows={"R": {"method": {"name": "fedfew", "models": 2}}}), tmp_path)
    result = RunFolder.of(tmp_path, cell.key).result
    absent = [client for client in result["clients"] if client["adapted_score"] is None]
    assert len(absent) == 2  # one of three took part
    assert all(client["w"] is None and client["alpha"] is None and client["served_score"] is not None for client in absent)
    assert result["run"]["adapted_std"] == 0


def test_a_run_that_failed_a_moment_ago_elsewhere_is_not_tried_again(tmp_path):
    (cell, *_) = cells(study())
    RunFolder.of(tmp_path, cell.key).fail("no memory", "MemoryError")
    told = []
    Worker(tmp_path, False, "", 1, told.append).make(cell.key, cell.settings)
    assert told == [{"event": "failed", "key": cell.key, "error": "no memory"}]
    assert RunFolder.of(tmp_path, cell.key).attempts == []


def test_a_worker_leaves_the_others_their_share_of_the_memory(tmp_path, monkeypatch):
    (cell, *_) = cells(study())
    shared = []
    monkeypatch.setattr("fedfew.engines.memory.share", lambda device, processes: shared.append((device.type, processes)))
    Worker(tmp_path, False, "", 3, lambda event: None).make(cell.key, cell.settings)
    assert shared == [("cpu", 3)]


# -- queries -----------------------------------------------------------------------------------------------------------------


def test_pyarrow_answers(finished):
    folder = finished[0] / "tiny"
    runs, clients = pq.read_table(folder / "runs.parquet"), pq.read_table(folder / "clients.parquet")
    done = runs.filter(pc.equal(runs["status"], "done"))
    means = done.group_by("row").aggregate([("served_mean", "mean")]).to_pylist()
    joined = (
        clients.drop_columns(["w"]).join(done.select(["key", "row"]), "key").group_by("row").aggregate([("served_score", "mean")])
    )
    by_client = {row["row"]: row["served_score_mean"] for row in joined.to_pylist()}
    assert {row["row"]: row["served_mean_mean"] for row in means} == pytest.approx(by_client)


def test_duckdb_answers(finished):
    duckdb = pytest.importorskip("duckdb")
    folder = finished[0] / "tiny"
    query = f"""
        select r.row, count(*) as clients, min(c.served_score) as worst
        from '{folder}/runs.parquet' r join '{folder}/clients.parquet' c using (key)
        where r.status = 'done' group by r.row order by r.row
    """
    found = duckdb.sql(query).fetchall()
    assert [(row, clients) for row, clients, _ in found] == [("FedAvg", 6), ("FedFew", 6)]
    runs = store.read(folder).runs.to_pylist()
    assert found[0][2] == pytest.approx(min(row["served_min"] for row in runs if row["row"] == "FedAvg"))


def test_files_of_earlier_versions_are_read(tmp_path: Path, finished) -> None:
    """Their clients have served_accuracy, whatever the task."""
    results = store.read(finished[0] / "tiny")
    earlier = {"served_score": "served_accuracy", "adapted_score": "adapted_accuracy"}
    names = [earlier.get(name, name) for name in results.clients.column_names]
    store.write(
        tmp_path, store.Results(results.runs.drop_columns("score"), results.clients.rename_columns(names), results.rounds)
    )
    assert "served_accuracy" in pq.read_table(tmp_path / "clients.parquet").column_names
    assert store.read(tmp_path).clients.equals(results.clients)
    rows = [{earlier.get(name, name): value for name, value in row.items()} for row in results.clients.to_pylist()]
    assert store.table(rows, store.CLIENTS).equals(results.clients)


def test_the_score_is_named(results: store.Results) -> None:
    assert {run["score"] for run in results.runs.to_pylist() if run["status"] == "done"} == {"accuracy"}


def test_a_client_without_a_score_is_left_out_of_the_single_models_mean_too():
    """Its targets are all the same, so there is no R²."""
    rng = np.random.default_rng(0)
    samples = [(rng.normal(size=(12, 3)).astype("f4"), rng.normal(size=(12, 1)).astype("f4")) for _ in range(3)]
    tests = [*samples[:2], (samples[2][0], np.zeros((12, 1), "f4"))]
    data = fedfew.Federation.from_arrays(samples, tests, task="regression")
    run = fedfew.train(data, method="fedfew", model="linear", rounds=1, serve="mixture")
    single = run.scores("single")[:2].astype(float)
    assert run_result._single(run) == {"single_mean": pytest.approx(single.mean()), "single_min": pytest.approx(single.min())}
