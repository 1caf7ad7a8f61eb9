"""The protocol tuned: what is chosen, on which samples, and what is recorded of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfew
from fedfew.studies import run_result, store, tuning
from fedfew.studies.folder import RunFolder, write_plan
from fedfew.studies.options import Options
from fedfew.studies.plan import cells
from fedfew.studies.study import StudyError
from fedfew.studies.worker import Worker
from fedfew.training.settings import Settings
from tests.studies.small import study

TUNED = {"protocols": ["fair", "tuned"], "tune": {"lr": [1e-6, 0.5]}, "rows": {"R": {"method": "fedavg"}}}


def make(cell, root: Path) -> dict:
    worker = Worker(root, keep_models=False, code="abc", workers=1, send=lambda event: None)
    worker.make(cell.key, cell.settings, cell.candidates, tuning.points(cell.grid) if cell.grid else ())
    result = RunFolder.of(root, cell.key).result
    assert result is not None, RunFolder.of(root, cell.key).error
    return result["run"]


def test_the_grid_of_a_row_is_the_studys_and_its_own():
    rows = {
        "FedAvg": {"method": "fedavg"},
        "FedProx": {"method": "fedprox", "tune": {"mu": [0.1, 1.0], "lr": [0.3]}},
        "FedFew": {"method": "fedfew"},
    }
    found = study(protocols=["tuned"], tune={"lr": [0.1, 0.2], "models": [2, 3]}, rows=rows)
    grids = {cell.row: cell.grid for cell in cells(found)}
    assert grids == {
        "FedAvg": {"lr": [0.1, 0.2]},  # knows no models
        "FedProx": {"lr": [0.3], "mu": [0.1, 1.0]},
        "FedFew": {"lr": [0.1, 0.2], "models": [2, 3]},
    }
    fedfew_cell = cells(found)[2]
    assert [(c.lr, c.method_settings["models"]) for c in fedfew_cell.candidates] == [(0.1, 2), (0.1, 3), (0.2, 2), (0.2, 3)]
    assert [c.rounds for c in fedfew_cell.candidates] == [3] * 4


def test_a_row_without_anything_to_tune_is_that_of_the_fair_protocol():
    rows = {"R": {"method": "fedavg"}, "S": {"method": "fedprox", "tune": {"mu": [0.1, 1.0]}}}
    planned = cells(study(rows=rows, protocols=["fair", "tuned"]))
    keys = {(cell.protocol, cell.row): cell.key for cell in planned}
    assert keys["fair", "R"] == keys["tuned", "R"]
    assert keys["fair", "S"] != keys["tuned", "S"]


def test_the_grid_is_part_of_the_key():
    keys = [
        cells(study(**TUNED | {"tune": tune}), Options(("tuned",)))[0].key
        for tune in ({"lr": [0.1, 0.5]}, {"lr": [0.1]}, {"lr": [0.5, 0.1]}, {"momentum": [0.1, 0.5]})
    ]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune": None}, "protocols: tuned needs hyperparameters to choose from"),
        ({"tune": {"lr": 0.1}}, r"tune → lr: 0\.1 must be a list of values"),
        ({"tune": {"lr": [0.1, 0.1]}}, r"tune → lr: .* names a value twice"),
        ({"tune": {"lr": [0.1, -1]}}, "tune of rows → R: lr must be"),
        ({"tune": {"models": [2]}}, "tune: there is no hyperparameter of a method in this study, 'models'"),
        ({"tune": {"rounds": [2, 3]}}, "tune → rounds: cannot be tuned"),
        ({"tune": {"seed": [2, 3]}}, "seed is set by the plan"),
        ({"grid": {"lr": [0.1, 0.2]}}, "tune → lr: lr is in the grid or sweep, too"),
        (
            {
                "tune": None,
                "rows": {"R": {"method": "fedfew", "tune": {"models": [1, 2]}}},
                "sweep": [{"models": 2}, {"models": 3}],
            },
            "rows → R → tune → models: models is in the grid or sweep, too",
        ),
        ({"tune": {"lr": list(range(1, 102))}}, "has 101 combinations, and at most 100 are possible"),
        ({"rows": {"R": {"method": "fedavg", "tune": {"mu": [1]}}}}, "rows → R → tune: there is no hyperparameter 'mu'"),
    ],
)
def test_mistakes_are_named_with_their_place(changes, message):
    with pytest.raises(StudyError, match=message):
        cells(study(**TUNED | changes))


def test_tuned_is_refused_where_a_study_declares_nothing_to_tune():
    with pytest.raises(StudyError, match="protocols: tuned needs hyperparameters"):
        cells(study(), Options(("tuned",)))


def test_the_best_on_validation_samples_is_chosen_and_recorded(tmp_path, monkeypatch):
    found = study(**TUNED, base={"rounds": 5, "sample": 400})
    fair, tuned = cells(found)
    trained = []
    train = fedfew.train
    monkeypatch.setattr(fedfew, "train", lambda federation, **options: trained.append(federation) or train(federation, **options))
    run = make(tuned, tmp_path)
    record = json.loads(run["tuning"])
    assert record["chosen"] == {"lr": 0.5}
    assert [candidate["values"] for candidate in record["candidates"]] == [{"lr": 1e-6}, {"lr": 0.5}]
    scores = [candidate["served_accuracy"] for candidate in record["candidates"]]
    assert scores[0] < scores[1]
    assert record["validation_share"] == 0.2
    assert run["lr"] == 0.5
    assert "tuned: lr 0.5" in run["notes"]
    # On which samples: two candidates on a part of the training samples, then the choice on all of them and on test.
    first, second, final = trained
    all_training = {tuple(row.flatten().tolist()) for row in final.train.x}
    for federation in (first, second):
        assert federation.train.count.sum() + federation.test.count.sum() == final.train.count.sum()
        assert federation.train.count.sum() > federation.test.count.sum() > 0
        for i in range(len(federation)):
            assert {tuple(row.flatten().tolist()) for row in federation.test.of(i)[0]} <= all_training
    assert torch.equal(first.test.y, second.test.y)  # the same samples for every candidate
    # The same as the fair run with that value.
    by_hand = make(cells(study(rows={"R": {"method": "fedavg", "lr": 0.5}}, base={"rounds": 5, "sample": 400}))[0], tmp_path)
    assert run["served_mean"] == by_hand["served_mean"]
    # And in the tables.
    plan, _ = write_plan(tmp_path / "tiny", found.text, "scale 1", [fair, tuned], {})
    rows = store.collect(tmp_path, plan.cells).runs.to_pylist()
    assert [(row["protocol"], row["status"], row["tuning"] is not None) for row in rows] == [
        ("fair", "missing", False),
        ("tuned", "done", True),
    ]


def test_candidates_have_the_validation_data_that_the_run_has(tmp_path, monkeypatch):
    (cell,) = cells(study(**TUNED, base={"sample": 400, "val_share": 0.2, "keep": "best"}), Options(("tuned",)))
    trained = []
    train = fedfew.train
    monkeypatch.setattr(fedfew, "train", lambda federation, **options: trained.append(federation) or train(federation, **options))
    assert json.loads(make(cell, tmp_path)["tuning"])["chosen"] == {"lr": 0.5}
    first, second, final = trained
    for federation in (first, second):
        assert torch.equal(federation.val.count, final.val.count)
        assert torch.equal(federation.train.count + federation.test.count, final.train.count)


def test_candidates_that_are_scored_are_not_trained_again(tmp_path, monkeypatch):
    (cell,) = cells(study(**TUNED), Options(("tuned",)))
    folder = RunFolder.of(tmp_path, cell.key)
    RunFolder(folder.path / "candidate-0").finish_candidate(0.9, 0.1)
    RunFolder(folder.path / "candidate-1").finish_candidate(0.8, 0.2)
    calls = []
    train = fedfew.train
    monkeypatch.setattr(
        fedfew, "train", lambda federation, **options: calls.append(options["lr"]) or train(federation, **options)
    )
    assert json.loads(make(cell, tmp_path)["tuning"])["chosen"] == {"lr": 1e-6}
    assert calls == [1e-6]


def test_a_candidate_that_diverges_is_not_chosen(tmp_path):
    (cell,) = cells(study(**TUNED | {"tune": {"lr": [1e30, 0.1]}}, base={"model": "mlp"}), Options(("tuned",)))
    record = json.loads(make(cell, tmp_path)["tuning"])
    assert record["candidates"][0]["served_accuracy"] is None
    assert record["chosen"] == {"lr": 0.1}
    with pytest.raises(ValueError, match="training diverged with every candidate"):
        tuning.best([tuning.Score({"lr": 1}, None)])


def test_of_equals_the_first_is_chosen():
    scores = [tuning.Score({"a": i}, accuracy) for i, accuracy in enumerate((0.1, 0.9, None, 0.9))]
    assert tuning.best(scores) == 1


def test_a_candidate_differs_in_its_values_alone():
    settings = Settings(method="fedfew", method_settings={"models": 2, "mu": 0.1}, lr=0.3, rounds=7)
    found = tuning.candidate(settings, {"lr": 0.5, "mu": 0.2})
    assert (found.lr, found.method_settings) == (0.5, {"models": 2, "mu": 0.2})
    assert tuning.candidate(found, {"lr": 0.3, "mu": 0.1}) == settings


def test_a_candidate_with_infinite_scores_is_one_that_diverged():
    """R² and losses that are infinite cannot be stored as JSON: the tuned run ended with an error about that."""
    samples = [(np.full((8, 3), 1e8, "f4"), np.arange(8, dtype="f4")) for _ in range(3)]
    data = fedfew.Federation.from_arrays(samples, samples, task="regression")
    run = fedfew.train(data, "linear", "fedavg", rounds=1, lr=1e-4, batch_size=8, device="cpu")
    assert np.isinf(run.scores("served")).all()
    assert run_result.mean_served(run) == (None, None)
    with pytest.raises(ValueError, match="scores of some clients are infinite: training diverged"):
        run_result.run_result(run, data, Settings(), None, {}, [])
