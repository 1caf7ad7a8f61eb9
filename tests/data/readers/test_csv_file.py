"""CSV files as spreadsheets and hospitals write them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedfew.data import DataError, load, new_data
from fedfew.data.readers import csv_file
from tests.data.layouts import two


def test_semicolons_latin_1_and_decimal_commas(tmp_path: Path) -> None:
    lines = ["Größe;Fieber;Ort;Diagnose"]
    lines += [f"{150 + i % 9},5;{i % 3};{('Zürich', 'Köln')[i % 2]};{('krank', 'gesund')[i % 2]}" for i in range(30)]
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode("latin-1"))
    federation = load(tmp_path / "a.csv", label="Diagnose", client="Ort", scale="none")
    assert federation.client_names == ("Zürich", "Köln")
    assert federation.class_names == ("gesund", "krank")
    assert federation.about["columns"]["used"] == ["Größe", "Fieber"]
    assert set((federation.train.x[:, 0] % 1).tolist()) == {0.5}
    assert federation.about["notes"][:2] == [
        "a.csv is not UTF-8 and was read as cp1252",
        "a.csv: commas are decimal points in Größe",
    ]


def read_table(path: Path):
    return csv_file.read_table(path, lambda name: False)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = "größe,label\n1.5,ä\n2.5,ö\n"
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    table, notes = read_table(tmp_path / "a.csv")
    assert table.to_pydict() == {"größe": [1.5, 2.5], "label": ["ä", "ö"]}
    assert bool(notes) == (encoding in ("cp1252", "latin-1"))


def test_bytes_that_cp1252_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,label\n1,\x81\n")
    table, notes = read_table(tmp_path / "a.csv")
    assert table["label"].to_pylist() == ["\x81"]
    assert notes == ("a.csv is not UTF-8 and was read as latin-1",)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    quoted = f'"a,b;c|d{delimiter}"'
    (tmp_path / "a.csv").write_text(delimiter.join([quoted, "x", "y"]) + "\n" + delimiter.join(["1", "2", "3"]) + "\n")
    assert read_table(tmp_path / "a.csv")[0].column_names == [quoted[1:-1], "x", "y"]


def test_commas_in_words_and_ranges_are_no_decimal_points(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b;c\n1,5;1,5;x,y\n2;1,5,6;z\n")
    table, notes = read_table(tmp_path / "a.csv")
    assert table.to_pydict() == {"a": [1.5, 2.0], "b": ["1,5", "1,5,6"], "c": ["x,y", "z"]}
    assert notes == ("a.csv: commas are decimal points in a",)


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (("01", "1", "10"), ("01", "1", "10")),  # two hospitals
        (("007", "010", "100"), ("007", "010", "100")),
        (("1E3", "1000", "10E2"), ("1E3", "1000", "10E2")),  # three codes, one number
        (("1.1", "1.10", "2"), ("1.1", "1.10", "2")),
        (("12345678901234567891", "12345678901234567892"), ("12345678901234567891", "12345678901234567892")),
        ((" 01", " 02"), ("01", "02")),
        (("1.0", "2.0", "-3.0"), ("1", "2", "-3")),  # whole numbers as pandas writes them beside gaps
        (("True", "False"), ("true", "false")),
        (("true", "1"), ("true", "1")),
        (("12:30", "12:30:00"), ("12:30", "12:30:00")),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_clients_are_named_as_they_are_written(
    tmp_path: Path, delimiter: str, written: tuple[str, ...], names: tuple[str, ...]
) -> None:
    rows = [delimiter.join([word, str(i % 7), str(i % 2)]) for word in written for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join([delimiter.join(["site", "x", "label"]), *rows]) + "\n")
    federation = load(tmp_path / "a.csv", client="site", input="x")
    assert federation.client_names == names
    assert federation.train.count.tolist() == [15] * len(names)
    new = new_data.read(tmp_path / "a.csv", "table", ["x"], "label")
    assert list(dict.fromkeys(new.columns["site"])) == list(names)


def test_columns_of_inputs_and_labels_are_numbers_as_before(tmp_path: Path) -> None:
    rows = [f"{site},{x},{y}" for site in ("01", "1") for x, y in (("01", "1.0"), ("1e1", "2.0"), ("007", "2.5"), ("3", "0.5"))]
    (tmp_path / "a.csv").write_text("\n".join(["site,x,label", *rows]) + "\n")
    federation = load(tmp_path / "a.csv", client="site", label="label", scale="none", task="regression", test_share=0.25)
    for client in range(2):
        x = torch.cat([federation.train.of(client)[0], federation.test.of(client)[0]])
        assert sorted(x[:, 0].tolist()) == [1.0, 3.0, 7.0, 10.0]


SECRETS = ("Anna Muster", "geheim", "13.07.1955")


@pytest.mark.parametrize(
    "text",
    [
        "age,name,label\n1,Anna Muster,a\n2,Anna Muster,geheim,b\n",  # too many columns
        'age,name,label\n1,"Anna Muster,a\n2,geheim,b\n',  # a quotation mark is not closed
        "age,label\n1.5,geheim\n2.5,\n3.5,geheim\n",  # a label is missing
        "age,label\n1.5,geheim\n2.5,geheim\n3.5,geheim\n",  # one class only
        "age,label\ninf,geheim\n2.5,Anna Muster\n3.5,geheim\n",  # an infinite value
        "image,label\n/home/Anna Muster.png,geheim\nAnna Muster.png,13.07.1955\n",  # paths
        "age,born,label\n1,13.07.1955,0.5\n2,13.07.1955,1\n",  # a label that is no class
        "name,label\nAnna Muster,geheim\nAnna Muster,b\n",  # no input
        "age,age,label\n1,2,geheim\n",  # a column twice
    ],
)
def test_no_error_quotes_a_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        two(tmp_path / "a.csv")
    message = str(caught.value)
    assert "a.csv" in message or " a " in message
    assert not any(secret in message for secret in SECRETS), message


def test_blanks_after_delimiters_belong_to_nothing(tmp_path: Path) -> None:
    """A header "age, label" had a column " label", which nobody could name by what they saw, and a class " yes"."""
    rows = [(20 + i % 7, f"0{i % 3}", "yes" if i % 2 else "no") for i in range(30)]
    plain, spaced = tmp_path / "plain.csv", tmp_path / "spaced.csv"
    for path, between in ((plain, ","), (spaced, ", ")):
        lines = [("age", "site", "label"), *rows, ("NA", "00", "no")]
        path.write_text("".join(between.join(map(str, line)) + "\n" for line in lines))
    one, other = (load(path, client="site") for path in (plain, spaced))
    assert other.client_names == ("00", "01", "02")
    assert other.class_names == one.class_names == ("no", "yes")
    assert other.fingerprint() == one.fingerprint()


@pytest.mark.parametrize("before", [1, 200_000])  # Arrow reads the second in blocks
def test_a_row_of_another_width_is_named(tmp_path: Path, before: int) -> None:
    rows = 'a,b,y\n\n"x\nz",2,3\n' + "1,2,3\n" * (before - 1)
    (tmp_path / "a.csv").write_text(rows + "7,2,3,secret\n1,2,3\n")
    wrong = f"a.csv cannot be read as CSV: row {before + 1} below the header has 4 values, but the header has 3$"
    with pytest.raises(DataError, match=wrong):
        csv_file.read_table(tmp_path / "a.csv", lambda name: False)
    (tmp_path / "a.csv").write_text(rows + "7,2\n")
    with pytest.raises(DataError, match=f"row {before + 1} below the header has 2 values, but the header has 3$"):
        csv_file.read_table(tmp_path / "a.csv", lambda name: False)
