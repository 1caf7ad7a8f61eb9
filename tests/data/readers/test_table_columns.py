"""Which columns of a table become features: ids, indices and constants do not; words do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fedfew.data import DataError, load
from fedfew.data.readers import table_columns
from fedfew.data.table_preprocessing import TablePreprocessing
from tests.data import layouts
from tests.data.layouts import two

N = 40
AGE = [30.0 + 7.3 * (i % 11) for i in range(N)]
LABEL = [i % 2 for i in range(N)]


def chosen(columns: dict[str, object], **named: object) -> table_columns.FeatureColumns:
    return table_columns.choose(pa.table(columns), None, {}, "a.csv", **named)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("Unnamed: 0", list(range(N)), "an id by its name"),
        ("", list(range(N)), "an id by its name"),
        ("patient_id", [i // 2 for i in range(N)], "an id by its name"),
        ("patientId", [i // 2 for i in range(N)], "an id by its name"),
        ("Patient ID", [i // 2 for i in range(N)], "an id by its name"),
        ("id", [i // 2 for i in range(N)], "an id by its name"),
        ("patient", [i // 2 for i in range(N)], "an id by its name"),
        ("__index_level_0__", [i // 2 for i in range(N)], "the index of a data frame"),
        ("visit", list(range(1000, 1000 + N)), "an id: every value is different"),
        ("visit", [float(1000 + i) for i in range(N)], "an id: every value is different"),
        ("visit", [f"v{i}" for i in range(N)], "an id: every value is different"),
        ("dose", ["12,5", *[f" {i}.25" for i in range(N - 2)], "1e-3"], f"{N - 1} of {N} values are numbers, but not '12,5'"),
        ("dose", ["low", "high", *[f"{i}" for i in range(60)] * 2], "120 of 122 values are numbers, but not 'high', 'low'"),
        ("notes", [f"word {i % 30} {i}" for i in range(N)] * 2, None),
        ("ward", ["A"] * N, "the same value in all rows"),
        ("dose", [None] * N, "no values"),
        ("nested", [[1]] * N, r"neither numbers nor words \(list<"),
    ],
)
def test_what_is_left_out_and_why(name: str, values: list[object], reason: str | None) -> None:
    if reason is None:
        values, reason = [f"w{i % 60}" for i in range(2 * N)], "60 different words, more than 50 categories"
    rows = len(values)
    found = chosen({"age": (AGE * 4)[:rows], name: values})
    assert found.used == ("age",)
    assert __import__("re").match(reason, found.left_out[name])


@pytest.mark.parametrize(
    "values",
    [
        [float(i) + 0.5 for i in range(N)],  # measurements differ in every row
        [i % 7 for i in range(N)],
        ["a", "b"] * (N // 2),
        [True, False] * (N // 2),
        [None, *range(1, 8)] * 5,
    ],
)
def test_what_is_used(values: list[object]) -> None:
    assert "marker" in chosen({"age": AGE, "marker": values}).used


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["?", "1", "2.5", "3"], "30 of 40 values are numbers, but not '?'"),
        (["1.000,5", "20,5", "2.300,1", "7"], "numbers written as '1.000,5', '2.300,1', '20,5'"),
        (["12 %", "3%", "7%", "12 %"], "numbers written as '12 %', '3%', '7%'"),
        (["5 mg", "10mg", "2.5 mg", "20 mg"], "numbers written as '10mg', '2.5 mg', '20 mg'"),
        (["5 mg", "10 mg", "7", "20 mg"], "numbers written as '10 mg', '20 mg', '5 mg'"),
        (["1a", "1b", "2a", "2b"], None),
        (["2 m", "10 mg", "7 m", "20 mg"], None),
        (["20-29", "30-39", "20-29", "3"], None),
        (["1", "2", "3", "1"], None),  # codes in words: somebody made them words
        (["low", "high", "1", "2a"], None),
    ],
)
def test_numbers_that_are_used_as_words_are_noted(values: list[str], reason: str | None) -> None:
    table = pa.table({"age": AGE, "dose": values * 10, "y": LABEL})
    notes = load(table, label="y", clients=1, partition="iid").about["notes"]
    found = [note for note in notes if "used as words" in note]
    assert found == ([] if reason is None else [note for note in found if f"dose ({reason})" in note][:1])
    assert bool(found) == (reason is not None)


def test_numbers_of_half_precision_are_numbers() -> None:
    table = pa.table({"half": np.array([1.5, 2.25, 7.0, 0.5] * 10, dtype=np.float16), "y": LABEL})
    data = load(table, label="y", clients=1, partition="iid", scale="none")
    assert set(data.train.x[:, 0].tolist()) | set(data.test.x[:, 0].tolist()) == {1.5, 2.25, 7.0, 0.5}


def test_nested_labels_are_refused() -> None:
    with pytest.raises(DataError, match="the label column 'y' holds struct<k: int64>: numbers or words are needed"):
        load(pa.table({"age": AGE, "y": [{"k": i} for i in LABEL]}), label="y", clients=1, partition="iid")


def test_words_that_end_like_ids_are_no_ids() -> None:
    assert chosen({"paid": [0, 1] * 20, "acid": AGE, "covid": ["y", "n"] * 20}).left_out == {}


def test_in_a_small_table_different_values_are_no_sign() -> None:
    assert chosen({"age": [30, 41, 52]}).used == ("age",)


def test_a_pandas_index_in_a_file_is_no_feature(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": AGE, "sex": pd.Categorical(["f", "m"] * (N // 2)), "label": LABEL})
    frame = frame.sample(frac=1, random_state=0)  # the index is now stored as __index_level_0__
    frame.to_parquet(tmp_path / "a.parquet")
    frame.rename_axis("visit").to_parquet(tmp_path / "b.parquet")
    frame.to_csv(tmp_path / "c.csv")
    for name in ("a.parquet", "b.parquet", "c.csv"):
        federation = two(tmp_path / name)
        assert federation.about["columns"]["used"] == ["age", "sex"], name
        assert federation.shape == (3,), name  # age, sex=f, sex=m
        assert "columns left out" in federation.about["notes"][0], name
    assert two(tmp_path / "b.parquet").about["columns"]["left_out"]["visit"] == "the index of a data frame"
    with pytest.raises(DataError, match="no input column 'age '"):
        two(tmp_path / "c.csv", input=["age "])


def test_patient_ids_are_no_features_but_can_group(tmp_path: Path) -> None:
    layouts.write(tmp_path / "a.parquet", {"patient_id": [i // 2 for i in range(N)], "age": AGE, "label": LABEL})
    federation = two(tmp_path / "a.parquet", group="patient_id")
    assert federation.shape == (1,)
    assert two(tmp_path / "a.parquet").about["notes"] == [
        "columns left out: patient_id (an id by its name). input=… names the columns to use"
    ]
    assert two(tmp_path / "a.parquet", input=["patient_id", "age"]).shape == (2,)


def test_named_columns_are_used_whatever_they_are_called(tmp_path: Path) -> None:
    layouts.write(tmp_path / "a.parquet", {"id": list(range(N)), "sex": ["f", "m"] * 20, "age": AGE, "label": LABEL})
    federation = two(tmp_path / "a.parquet", input=["id", "sex"])
    assert federation.shape == (3,)
    assert federation.about["columns"]["left_out"] == {"label": "the label", "age": "not named in input"}


def test_all_kinds_of_columns_as_one(tmp_path: Path) -> None:
    """Categoricals, decimals, large strings and integers beyond 2⁵³ are what they hold."""
    from decimal import Decimal

    table = {
        "grade": pa.array(["low", "high"] * 20).dictionary_encode(),
        "cost": pa.array([Decimal(i % 9) for i in range(N)]),
        "device": pa.array([2**60 + i % 2 for i in range(N)]),
        "place": pa.array(["x", "y", None, "x"] * 10, pa.large_string()),
        "label": pa.array(["no", "yes"] * 20).dictionary_encode(),
    }
    layouts.write(tmp_path / "a.parquet", table)
    federation = load(tmp_path / "a.parquet", clients=2, partition="iid", scale="none")
    assert federation.class_names == ("no", "yes")
    preprocessing = federation.preprocessing
    assert isinstance(preprocessing, TablePreprocessing)
    assert preprocessing.numbers == ("cost", "device")
    assert preprocessing.categories == (("grade", ("high", "low")), ("place", ("(missing)", "x", "y")))
    x = np.concatenate([federation.train.x.numpy(), federation.test.x.numpy()])
    assert x[:, 2:4].sum(axis=1).tolist() == [1] * N
    assert x[:, 4:].sum(axis=0).tolist() == [10, 20, 10]
