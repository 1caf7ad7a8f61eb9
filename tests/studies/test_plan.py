"""From a study to its runs: how many, with which settings, under which protocol."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fedfew.methods import METHODS
from fedfew.studies import protocol, scale
from fedfew.studies.options import Options
from fedfew.studies.plan import cells
from fedfew.studies.study import Study, StudyError, read
from fedfew.training.settings import Settings
from tests.studies.small import study


def counts(found: Study, **options) -> int:
    return len(cells(found, Options(**options)))


# -- how many ----------------------------------------------------------------------------------------------------------------


def test_table_1_is_nine_columns_of_ten_methods():
    planned = cells(read("table1"))
    assert Counter(cell.protocol for cell in planned) == {"published": 9 * 10, "fair": 9 * 10 * 3}
    assert Counter(cell.seed for cell in planned) == {0: 180, 1: 90, 2: 90}
    assert all(cell.settings.seed == cell.settings.data_seed == cell.seed for cell in planned)


@pytest.mark.parametrize(
    ("name", "published", "fair"),
    [
        ("table2", 2 * 10, 2 * 10 * 3),
        ("fairness", 8 * 7, 8 * 7 * 3),
        ("k-cifar10", 10 + 1, 3 * (10 + 1)),  # FedAvg has no K: it is run once
        ("k-agnews-kvasir", 2 * 5, 2 * 5 * 3),
        ("local-epochs", 5, 15),
        ("mu", 4, 12),
        ("natural", 0, 2 * 10 * 3),
        ("quick", 0, 30),
        ("quick-k", 0, 5 * (10 + 1)),
        ("quick-mu", 0, 5 * 6),
        ("quick-epochs", 0, 5 * 5),
    ],
)
def test_the_other_studies(name, published, fair):
    assert Counter(cell.protocol for cell in cells(read(name))) == Counter(published=published, fair=fair)


def test_seeds_and_protocols_can_be_asked_for():
    found = study(protocols=["published", "fair"], seeds={"published": 1, "fair": 3})
    assert counts(found) == 2 * (1 + 3)
    assert counts(found, seeds=5) == 2 * (5 + 5)
    assert counts(found, protocols=("fair",)) == 2 * 3
    assert counts(study(), protocols=("published",), seeds=2) == 2 * 2  # not the study's own protocol


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["cifar10-*"], 2 * 10),
        (["*/FedFew"], 9),
        (["fedfew"], 9),
        (["cifar10-dir-20/fed*"], 6),  # FedAvg, FedProx, FedMTL, FedRep, FedAMP, FedFew
        (["cifar10-dir-20", "FedFew"], 10 + 8),
        (["agnews-dir-20/"], 10),
    ],
)
def test_only_some_columns_and_rows(only, expected):
    assert counts(read("table1"), protocols=("published",), only=tuple(only)) == expected


def test_what_fits_nothing_is_refused():
    with pytest.raises(ValueError, match="no column or row of table1 that fits --only 'cifar11-dir-20'; did you mean 'cifar10"):
        counts(read("table1"), only=("cifar11-dir-20",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "--scale must be a number above 0 and at most 1"),
        ({"scale": 2}, "--scale must be a number above 0 and at most 1"),
        ({"seeds": 0}, "--seeds must be ≥ 1"),
        ({"sample": 1}, "--sample must be ≥ 2"),
        ({"protocols": ("fare",)}, "there is no protocol 'fare'; did you mean 'fair'?"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Options(**options)


# -- with which settings -----------------------------------------------------------------------------------------------------


def test_the_later_layer_wins():
    found = study(
        base={"lr": 0.1, "batch_size": 1, "rounds": 5, "local_epochs": 4},
        columns={"c": {"dataset": "digits", "batch_size": 2, "rounds": 6, "local_epochs": 5}},
        rows={"R": {"method": "fedavg", "rounds": 7, "local_epochs": 6}},
        grid={"local_epochs": [7]},
    )
    (cell,) = cells(found)
    s = cell.settings
    assert (s.lr, s.batch_size, s.rounds, s.local_epochs) == (0.1, 2, 7, 7)
    assert cell.point == {"local_epochs": 7}


def test_what_suits_the_data_set_applies_below_everything():
    (cell,) = cells(study(base={"batch_size": 7}, columns={"c": {"dataset": "kvasir"}}, rows={"R": {"method": "fedavg"}}))
    s = cell.settings
    assert (s.rounds, s.lr, s.batch_size, s.model) == (3, 0.002, 7, "linear")  # rounds and model are the base's
    assert s.partition == "dirichlet:0.5"
    (natural,) = cells(read("table2"), Options(only=("fedisic/FedAvg",), protocols=("published",)))
    assert (natural.settings.clients, natural.settings.partition) == (6, "by:center")


def test_hyper_parameters_go_to_the_rows_whose_method_has_them():
    found = study(
        base={"models": 3},
        rows={n: {"method": n} for n in ("fedavg", "ifca")} | {"F": {"method": {"name": "fedfew", "models": 2}}},
    )
    by_row = {cell.row: cell.settings.method_settings for cell in cells(found)}
    assert by_row == {"fedavg": {}, "ifca": {"models": 3}, "F": {"models": 2}}


def test_an_axis_goes_to_the_rows_whose_method_has_it():
    found = cells(study(grid={"mu": [0.1, 1], "lr": [0.2]}))
    points = {row: [cell.point for cell in found if cell.row == row] for row in ("FedAvg", "FedFew")}
    assert points == {"FedAvg": [{"lr": 0.2}], "FedFew": [{"mu": 0.1, "lr": 0.2}, {"mu": 1, "lr": 0.2}]}


def test_device_data_folder_and_sample_of_the_user():
    (first, *_) = cells(study(), Options(device="cpu", data_dir="there", sample=50))
    assert (first.settings.device, first.settings.data_dir, first.settings.sample) == ("cpu", "there", 50)


MISTAKES = {
    "misspelt setting": (
        {"base": {"batchsize": 3}},
        "base: there is no setting of a run, or of a method in this study, 'batchsize'",
    ),
    "wrong value": ({"base": {"lr": "fast"}}, "base: lr must be a number, not 'fast'"),
    "wrong value in a column": ({"columns": {"c": {"clients": "many"}}}, "columns → c: clients must be a whole number"),
    "unknown data set": ({"columns": {"c": {"dataset": "cifar11"}}}, "columns → c: there is no data set 'cifar11'; did you mean"),
    "wrong partition": (
        {"columns": {"c": {"partition": "dirichle:1"}}},
        "columns → c: there is no partition 'dirichle'; did you",
    ),
    "unknown method": ({"rows": {"R": {"method": "fedav"}}}, "rows → R: there is no method 'fedav'; did you mean 'fedavg'?"),
    "method without name": ({"rows": {"R": {"method": {"mu": 1}}}}, "rows → R: method is {'mu': 1}: write method: fedavg"),
    "another's setting": (
        {"rows": {"R": {"method": {"name": "fedavg", "mu": 1}}}},
        "rows → R: there is no setting 'mu'; it belongs",
    ),
    "impossible setting": ({"rows": {"R": {"method": {"name": "fedfew", "mu": -1}}}}, "rows → R: fedfew: mu must be"),
    "unknown model": (
        {"rows": {"R": {"method": "fedavg", "model": "cmm"}}},
        "rows → R: there is no model 'cmm' (there are: linear",
    ),
    "model not importable": ({"base": {"model": "nowhere:net"}}, "base: model is 'nowhere:net', but the module nowhere cannot"),
    "rounds zero": ({"base": {"rounds": 0}}, "base: rounds must be a whole number ≥ 1, not 0"),
    "lr zero": ({"base": {"lr": 0}}, "base: lr must be a finite number > 0, not 0"),
    "precision": ({"base": {"precision": "fp8"}}, "base: precision must be"),
    "device": ({"base": {"device": "tpu9"}}, "base: device"),
    "more models than clients": (
        {"grid": {"models": [9]}},
        "columns → iid with rows → FedFew, models 9: fedfew: models must be at most",
    ),
    "axis that is nobody's": (
        {"grid": {"modles": [1]}},
        "grid or sweep: there is no setting of a run, or of a method in this study, 'modles'; did you mean 'models'?",
    ),
    "data as an axis": ({"grid": {"clients": [1]}}, "grid → clients: clients is no axis: the data are named by columns"),
    "method in a column": ({"columns": {"c": {"method": "fedavg"}}}, "columns → c: the method is named by the rows"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named_with_its_place(case):
    changes, message = MISTAKES[case]
    with pytest.raises(StudyError) as raised:
        cells(study(**changes))
    assert f"tiny.yaml, {message}" in str(raised.value)


# -- protocols ---------------------------------------------------------------------------------------------------------------


def test_published_changes_what_was_published_otherwise():
    published, fair = (cells(read("table1"), Options(only=("*/FedFew",), protocols=(p,), seeds=1)) for p in ("published", "fair"))
    before, after = ({cell.column: cell.settings for cell in found} for found in (fair, published))
    assert before["cifar10-dir-20"].partition == "dirichlet:0.5"
    assert after["cifar10-dir-20"].partition == "dirichlet-published:0.1"
    assert after["cifar100-pat-10"].partition == before["cifar100-pat-10"].partition == "pathological:10"
    assert after["femnist-20"].partition == "by:writer_id"
    assert (before["agnews-dir-20"].model, after["agnews-dir-20"].model) == ("textcnn", "textcnn-published")
    assert after["tiny-dir-10"].model == "cnn"
    assert all(s.method_settings["published"] for s in after.values())
    assert not any("published" in s.method_settings for s in before.values())
    said = {cell.column: cell.changed for cell in published}
    assert said["cifar10-dir-20"][:2] == ("dirichlet-published:0.1 (stated dirichlet:0.5)", "the method's published preset")
    assert said["cifar10-dir-20"][2:] == ("2001 rounds (stated 2000): the last score has one more local epoch",)
    assert {s.batch_norm for s in after.values()} == {"average"}  # no ResNet-18 here
    assert all(cell.changed == () for cell in fair)


def test_published_statistics_stay_with_the_clients_wherever_there_is_a_resnet18():
    published, fair = (cells(read("table2"), Options(protocols=(p,), seeds=1)) for p in ("published", "fair"))
    assert {cell.settings.model for cell in fair} == {"resnet18"}
    assert {cell.settings.batch_norm for cell in fair} == {"average"}
    assert {cell.settings.batch_norm for cell in published} == {"local-statistics"}
    stated, _ = protocol.apply("published", {"model": "resnet18", "batch_norm": "batch", "method": {"name": "fedavg"}})
    assert stated["batch_norm"] == "batch"  # what a study states itself stays


def test_a_row_may_choose_its_own_form_under_published():
    found = study(protocols=["published"], rows={"R": {"method": {"name": "fedprox", "published": False}}})
    assert cells(found)[0].settings.method_settings == {"published": False}


def test_a_shift_survives_the_published_partition():
    settings, _ = protocol.apply("published", {"partition": "dirichlet:1+rotation", "method": {"name": "fedavg"}})
    assert settings["partition"] == "dirichlet-published:0.1+rotation"


def test_fedfews_published_score_is_that_of_the_round_after_the_last():
    for share, stated in ((1.0, 2000), (0.1, 200)):
        options = Options(only=("cifar10-dir-20/*",), protocols=("published", "fair"), seeds=1, scale=share)
        rounds = {(cell.protocol, cell.row): cell.settings.rounds for cell in cells(read("table1"), options)}
        assert rounds[("published", "FedFew")] == stated + 1
        assert {length for at, length in rounds.items() if at != ("published", "FedFew")} == {stated}


# -- scale -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "share", "expected"), [(2000, 1, 2000), (2000, 0.05, 100), (2000, 0.01, 20), (1000, 0.0123, 12), (2000, 0.0001, 2)]
)
def test_rounds_of_a_scaled_run(rounds, share, expected):
    assert scale.rounds(Settings(rounds=rounds), share) == expected


@pytest.mark.parametrize(
    ("rounds", "score_every", "expected"),
    [(100, 10, 10), (20, 10, 2), (9, 10, 1), (100, 3, 3), (1000, 200, 100)],  # ten rounds are scored, where there are ten
)
def test_a_shorter_run_is_scored_more_often(rounds, score_every, expected):
    assert scale.shortened(Settings(rounds=2000, score_every=score_every), rounds).score_every == expected


def test_a_run_of_full_length_is_scored_as_stated():
    settings = Settings(rounds=20, score_every=20)
    assert scale.shortened(settings, 20) == settings


@pytest.mark.parametrize(
    ("share", "updates"),
    [
        (1, 2000),
        (0.05, 96),
        (0.13, 256),
        (0.001, 32),
    ],  # of 2000·scale, the nearest multiple of 16, and two rounds of 16 epochs at least
)
def test_local_epochs_stay_comparable_when_scaled(share, updates):
    planned = cells(read("local-epochs"), Options(scale=share, protocols=("fair",), seeds=1))
    assert [cell.settings.local_epochs for cell in planned] == [1, 2, 4, 8, 16]
    assert {cell.settings.rounds * cell.settings.local_epochs for cell in planned} == {updates}
    assert [cell.point for cell in planned] == [{"local_epochs": e, "rounds": updates // e} for e in (1, 2, 4, 8, 16)]


def test_epochs_at_equal_rounds_are_scaled_each_by_itself():
    planned = cells(
        study(base={"rounds": 100}, rows={"R": {"method": "fedavg"}}, grid={"local_epochs": [1, 3]}), Options(scale=0.07)
    )
    assert [cell.settings.rounds for cell in planned] == [7, 7]


def test_checkpoints_are_a_twentieth_apart_unless_stated():
    (long, *_) = cells(study(base={"rounds": 2000}))
    assert (long.settings.checkpoint_every, long.settings.score_every) == (100, 1)
    (short, *_) = cells(study(base={"rounds": 2000}), Options(scale=0.01))
    assert (short.settings.rounds, short.settings.checkpoint_every) == (20, 1)
    (own, *_) = cells(study(base={"rounds": 2000, "checkpoint_every": 7}))
    assert own.settings.checkpoint_every == 7


def test_a_very_short_study_is_a_smoke_test_with_few_rows_and_one_seed():
    planned = cells(read("table1"), Options(scale=0.01, only=("cifar10-*",)))
    assert {(cell.settings.clients, cell.settings.sample) for cell in planned} == {(10, 1000), (20, 2000)}
    assert {cell.seed for cell in planned} == {0}
    longer = cells(read("table1"), Options(scale=0.02, only=("cifar10-*",)))
    assert {cell.settings.sample for cell in longer} == {None}
    assert {cell.seed for cell in longer} == {0, 1, 2}


def test_what_is_asked_for_counts_before_what_a_smoke_test_takes():
    planned = cells(read("table1"), Options(scale=0.01, only=("cifar10-dir-20",), sample=5000, seeds=2))
    assert {(cell.settings.sample, cell.seed) for cell in planned} == {(5000, 0), (5000, 1)}
    assert {cell.settings.sample for cell in cells(read("quick"), Options(scale=0.01))} == {None}  # the digits are few anyway
    assert {cell.settings.sample for cell in cells(read("privacy-cifar10"), Options(scale=0.01))} == {None}  # 2,000 clients of 30


def test_tables_never_mix_a_smoke_test_with_whole_data():
    assert Options(scale=0.01).length != Options(scale=0.01, sample=60_000).length


def test_a_label_tells_runs_apart():
    labels = [cell.label for cell in cells(study(grid={"mu": [0.1, 1]}, seeds=2))]
    assert len(set(labels)) == len(labels) == 6
    assert labels[-1] == "iid / FedFew, mu 1 (fair, seed 1)"


def test_runs_are_compared_by_what_they_are():
    first = cells(study())[0]
    assert first == replace(first, changed=("said otherwise",))
    assert first != replace(first, seed=1)


def test_more_runs_than_anybody_could_make_are_refused():
    """Before they are listed: twenty billion runs would not fit into memory."""
    rows = {f"r{i}": {"method": "fedavg"} for i in range(20)}
    with pytest.raises(StudyError, match=r"tiny\.yaml, the file: makes up to 20,000 runs, and at most 10,000 are possible"):
        cells(study(rows=rows, seeds=1000))
    with pytest.raises(StudyError, match="makes up to 20,000,000,000 runs"):
        cells(study(rows=rows), Options(seeds=10**9))
    assert len(cells(study(rows=rows, seeds=1000), Options(only=("r1",)))) == 1000


def test_the_leaderboard_of_methods_leaves_out_no_method_but_fedbn():
    """The CNN has no BatchNorm layers, so FedBN would be FedAvg."""
    planned = cells(read("leaderboard-methods"), Options(only=("cifar10-rotation",)))
    methods = [cell.settings.method for cell in planned]
    assert sorted(methods) == sorted(
        [*METHODS.keys() - {"fedbn"}, "fedfew", "fedfew", "fedfew"]
    )  # FedFew in three forms, and K FedAvgs
