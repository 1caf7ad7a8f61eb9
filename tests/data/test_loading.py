"""Every data set by name, from real files where there are some, else from small files of the same layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fedfew.data import DataError, SkippedWarning, load
from fedfew.federation import Federation, as_input
from tests.data import layouts
from tests.data.layouts import everything


def same(a: Federation, b: Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


def test_cifar10(shared: Path) -> None:
    federation = load("cifar10", clients=8, partition="dirichlet:0.5", data_dir=shared, sample=1000)
    assert federation.name == "cifar10-dirichlet-0.5"
    assert len(federation) == 8
    assert federation.shape == (3, 32, 32)
    assert federation.train.x.dtype == torch.uint8
    assert federation.class_names[:2] == ("airplane", "automobile")
    assert everything(federation) == 1000
    assert abs(int(federation.test.count.sum()) - 250) <= 8
    assert federation.about["notes"] == []
    assert same(federation, load("cifar10", clients=8, partition="dirichlet:0.5", data_dir=shared / "cifar10", sample=1000))
    assert not same(federation, load("cifar10", clients=8, partition="dirichlet:0.5", data_dir=shared, sample=1000, seed=1))
    inputs = as_input(federation.train.x[:50], federation.train.pixels)
    assert -1 <= float(inputs.min()) < -0.5
    assert 0.5 < float(inputs.max()) <= 1


def test_cifar10_pixels_are_those_of_the_files(shared: Path) -> None:
    import io

    import pyarrow.parquet as pq
    from PIL import Image

    path = shared / "cifar10" / "test-00000-of-00001.parquet"
    federation = load(path, clients=1, partition="iid", sample=20)
    drawn = np.sort(np.random.default_rng([0, 1]).choice(10_000, 20, replace=False))
    rows = pq.read_table(path).take(drawn).to_pylist()
    expected = {
        np.asarray(Image.open(io.BytesIO(row["img"]["bytes"]))).transpose(2, 0, 1).tobytes(): row["label"] for row in rows
    }
    for samples in (federation.train, federation.test):
        for x, y in zip(samples.x, samples.y, strict=True):
            assert expected.pop(x.numpy().tobytes()) == int(y)
    assert not expected


def test_ag_news(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(shared))
    federation = load("ag-news", sample=2000)
    assert federation.shape == (200,)
    assert federation.vocabulary == 32_000
    assert federation.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert federation.about["notes"] == ["45,880 of the 127,600 rows of the public data set"]
    assert (federation.train.x[:, 0] == 1).all()
    inputs = as_input(federation.train.x)
    assert inputs.dtype == torch.int64
    assert int(inputs.min()) == 0
    assert int(inputs.max()) < 32_000
    training_words = set(inputs[:, 1:].unique().tolist())
    test_words = set(as_input(federation.test.x).unique().tolist())
    assert test_words - {0, 1, 2} <= training_words  # what training never saw is unknown
    assert 2 in test_words
    published = load("ag-news", sample=2000, vocabulary_from="all")
    assert 2 not in set(as_input(published.test.x).unique().tolist())


def test_mnist_by_writer(shared: Path) -> None:
    federation = load("mnist-writers", data_dir=shared, clients=6, sample=3000)
    assert federation.about["partition"] == "by:writer_id"
    assert federation.shape == (1, 28, 28)
    assert everything(federation) == 3000
    sizes = federation.train.count + federation.test.count
    assert int(sizes.max() - sizes.min()) < 60
    digits_only = load("mnist", data_dir=shared, sample=500, clients=4)
    assert digits_only.about["partition"] == "dirichlet:0.5"
    assert digits_only.classes == 10


def test_every_writer_a_client(shared: Path) -> None:
    with pytest.raises(DataError, match=r"client \d+ \(\d+\) has 1 sample, too few"):
        load("mnist-writers", data_dir=shared, partition="by:writer_id", sample=2000)
    with pytest.warns(SkippedWarning, match=r"left out \d+: client \d+ \(\d+\) has 1 sample"):
        federation = load("mnist-writers", data_dir=shared, partition="by:writer_id", sample=2000, on_bad="skip")
    assert len(federation) > 300
    assert everything(federation) + len(federation.about["skipped"]) == 2000


def test_ham10000_by_body_site_and_lesion(shared: Path) -> None:
    federation = load("ham10000", data_dir=shared, clients=6, sample=3000)
    assert federation.about["partition"] == "by:localization"
    assert federation.about["group"] == "lesion_id"
    assert federation.classes == 7
    free = load("ham10000", data_dir=shared, clients=6, sample=3000, group="none")
    assert everything(free) == everything(federation) == 3000
    assert not same(free, federation)


@pytest.mark.parametrize("partition", ["by:localization", "dirichlet:0.5", "iid", "pathological:3"])
def test_a_lesion_is_on_one_side(shared: Path, partition: str) -> None:
    from fedfew.data import finding, split
    from fedfew.data.decoded import DecodedData
    from fedfew.data.partition_spec import PartitionSpec
    from fedfew.data.raw import ColumnChoice

    raw = finding.find("ham10000", shared, ColumnChoice(), {}).read()
    rows = DecodedData(
        np.zeros((len(raw), 1), np.float32),
        np.array(raw.labels),
        raw.label_names or (),
        raw.columns,
        np.arange(len(raw)),
        len(raw),
        "",
    )
    lesion = rows.columns["lesion_id"].codes
    spec = PartitionSpec.parse(partition)
    parts = spec.partition(rows, 6, np.random.default_rng(0), at_least=None, fewest=2, units=lesion)
    cuts, _, _ = split.cut_clients(
        parts, spec.client_names(rows, parts), split.Cutter(0.25, 0.1, units=lesion, group="lesion_id"), "raise"
    )
    sides = [set(lesion[np.concatenate([getattr(cut, side) for cut in cuts])].tolist()) for side in ("train", "val", "test")]
    assert sum(map(len, sides)) == len(set(lesion.tolist()))
    assert sum(len(side) for cut in cuts for side in (cut.train, cut.val, cut.test)) == len(raw)
    if spec.kind != "by":
        owners = [set(lesion[part].tolist()) for part in parts]
        assert sum(map(len, owners)) == len(set(lesion.tolist()))


def test_tiny_imagenet(shared: Path) -> None:
    federation = load("tiny-imagenet", data_dir=shared, clients=5, sample=400)
    assert federation.shape == (3, 64, 64)
    assert federation.classes == 20
    assert "20 of the 200 classes of the public data set" in federation.about["notes"]


def test_further_partitions_by_name() -> None:
    published = load("digits", clients=8, partition="dirichlet-published:0.3")
    assert int((published.train.count + published.test.count).min()) >= 40
    skewed = load("digits", clients=8, partition="quantity:0.7", at_least=20)
    with pytest.raises(ValueError, match="partition iid: at_least is 300, but a client has 224 samples"):
        load("digits", clients=8, partition="iid", at_least=300)
    assert int((skewed.train.count + skewed.test.count).min()) >= 20
    assert everything(published) == everything(skewed) == 1797


def test_validation_cut_and_stratification() -> None:
    federation = load("digits", clients=4, partition="iid", val_share=0.2, stratify=True)
    assert federation.val is not None
    assert everything(federation) == 1797
    for i in range(4):
        sides = [torch.bincount(s.of(i)[1], minlength=10) for s in (federation.train, federation.val, federation.test)]
        total = sum(sides)
        assert ((sides[2] - total * 0.25).abs() <= 1.5).all()
        assert ((sides[1] - total * 0.2).abs() <= 1.5).all()
    some = federation.take([2, 0]).to("cpu")
    assert some.val is not None
    assert torch.equal(some.val.of(0)[1], federation.val.of(2)[1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on_bad": "ignore"}, "on_bad must be"),
        ({"vocabulary_from": "test"}, "vocabulary_from must be"),
        ({"test_share": 1.5}, "test_share must lie"),
        ({"sample": 1}, "sample must be a whole number ≥ 2"),
        ({"sample": 5000}, "there are only 1797 rows"),
        ({"partition": "by:writer"}, "no column 'writer'"),
        ({"group": "patient"}, "no column 'patient' to group by"),
        ({"group": "patient", "stratify": True}, "exclude each other"),
        ({"clients": 2000}, "too few for 2000 clients"),
        ({"partition": "label-permutation:2", "clients": 0}, "clients must be a whole number ≥ 1"),
        ({"clients": "3"}, "clients must be a whole number ≥ 1, not '3'"),
        ({"seed": 1.5}, "seed must be a whole number ≥ 0, not 1.5"),
        ({"partition": 0.5}, 'partition must be text, as "iid" or "dirichlet:0.5", not 0.5'),
        ({"label": 4}, "label must be the name of a column or a list of names, as text, not 4"),
        ({"input": ["x", 0]}, "input must be the name of a column or a list of names, as text"),
        ({"stratify": "no"}, "stratify must be True or False, not 'no'"),
        ({"label": "y"}, "label='y': the digits have no columns to choose from"),
        ({"input": ["a", "b"]}, "input='a, b': the digits have no columns to choose from"),
        ({"pixels": "units"}, 'pixels must be "symmetric" or "unit", not \'units\''),
    ],
)
def test_wrong_settings_are_explained(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load("digits", **settings)


NUMBERS = (np.random.default_rng(0).normal(size=(24, 3)), np.arange(24) % 2)
TEXTS = pa.table({"text": ["good day", "bad day", "so so"] * 8, "label": [0, 1] * 12})


@pytest.mark.parametrize(
    ("data", "settings", "note"),
    [
        (
            NUMBERS,
            {"size": 16},
            "size is 16, but it is for images to be decoded, and these are arrays of numbers: it has no effect",
        ),
        (TEXTS, {"pixels": "unit"}, "pixels is unit, but it is for images in bytes, and these are texts: it has no effect"),
        (TEXTS, {"scale": "none"}, "scale is none, but it is for tables, and these are texts: it has no effect"),
        ("digits", {"vocabulary_from": "all"}, "but it is for texts, and these are arrays of numbers: it has no effect"),
        (
            {"a": NUMBERS, "b": NUMBERS},
            {"partition": "iid", "clients": 3},
            "the data are given per client, but all rows are divided",
        ),
    ],
)
def test_what_has_no_effect_is_noted(data: Any, settings: dict[str, Any], note: str) -> None:
    def notes(**given: Any) -> str:
        return "; ".join(load(data, **({"clients": 2, "partition": "iid"} | given)).about["notes"])

    assert note in notes(**settings)
    if isinstance(data, dict):
        settings = {"partition": "by:client"}
        assert note not in notes(**settings)
    else:
        assert "no effect" not in notes()


def test_columns_named_of_data_without_columns_are_refused(tmp_path: Path) -> None:
    """A label that arrays do not have was left aside, and y predicted."""
    x, y = NUMBERS
    np.savez(tmp_path / "a.npz", x=x, y=y, site=y)
    layouts.image_folder(tmp_path / "pictures")
    divided: dict[str, Any] = {"clients": 2, "partition": "iid"}
    for data in (tmp_path / "a.npz", NUMBERS):
        for label in ("site", ["y", "site"]):
            with pytest.raises(DataError, match="the labels of arrays are y, and there are no columns to choose from"):
                load(data, label=label, **divided)
        assert load(data, label="y", **divided).fingerprint() == load(data, **divided).fingerprint()
    with pytest.raises(DataError, match=r"input='site': the images in .*pictures have no columns to choose from"):
        load(tmp_path / "pictures", input="site", **divided)


def test_a_label_among_the_inputs_is_refused() -> None:
    """It was a feature, and every model perfect."""
    table = pa.table({"x": [0.1, 0.2, 0.3, 0.4] * 6, "y": [0, 1] * 12, "site": ["a", "b", "b"] * 8})
    with pytest.raises(ValueError, match=r"the table: the input column 'y' is the label: leave it out of input=…"):
        load(table, label="y", input=["x", "y"], client="site")
    with pytest.raises(ValueError, match="the input column 'site' is the column of clients or groups"):
        load(table, label="y", input=table.column_names[::2], client="site")
    assert load(table, label="y", input=np.array(["x"]), client="site").shape == (1,)


def test_rows_without_a_client_or_a_group_are_counted() -> None:
    patients = [str(i // 2) if i > 3 else None for i in range(24)]
    rows = {"site": ["a", None, "b"] * 8, "patient": patients, "size": [i / 7 for i in range(24)], "label": [0, 1] * 12}
    notes = load(pa.table(rows), client="site", group="patient").about["notes"]
    assert "8 rows have no value in site: they are one client, (missing)" in notes
    assert "4 rows have no value in patient: they are one group, (missing)" in notes


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ("dirichlet-published:0.5", "has 0 samples, too few for 2 splits"),
        ("dirichlet:0.5", "3 samples are too few for 4 clients with at least 2 each .rows of one group count as one sample"),
    ],
)
def test_fewer_groups_than_clients_are_explained(partition: str, words: str) -> None:
    rows = {"x": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "y": [0, 1, 0, 1, 0, 1], "patient": [0, 0, 1, 1, 2, 2]}
    with pytest.raises(ValueError, match=words):
        load(pa.table(rows), label="y", input="x", clients=4, partition=partition, group="patient")


def test_clients_that_hold_several_values_of_a_column_are_not_named_after_a_value_of_another() -> None:
    """With the values 0, 1 and 2 for two clients, both were called 0."""
    rows = np.arange(60)
    frame = pd.DataFrame({"a": rows % 7.0, "site": rows % 3, "label": rows % 2})
    some = load(frame, partition="by:site", clients=2)
    assert (set(some.client_names), some.about["client_column"]) == ({"0", "1 and 1 more"}, "site")
    every = load(frame.assign(site=rows % 6), partition="by:site", clients=2)
    assert (every.client_names, every.about["client_column"]) == (("0", "1"), None)


def test_names_that_differ_by_case_or_spaces_alone_are_noted(tmp_path: Path) -> None:
    labels, sites = ("ill", "Ill ", "well", "A", "a"), ("Basel", "Basel ", "Bern")
    rows = [f"{i % 7}.5,{labels[i % 5]},{sites[i % 3]}" for i in range(90)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y,site", *rows]))
    notes = load(tmp_path / "a.csv", label="y", client="site").about["notes"]
    assert "classes whose names differ by case or spaces alone: 'Ill ' and 'ill'" in notes
    assert "clients whose names differ by case or spaces alone: 'Basel' and 'Basel '" in notes
    assert not any("alone" in note for note in load("digits", clients=2).about["notes"])
