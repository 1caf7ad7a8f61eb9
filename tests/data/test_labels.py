"""Labels to class numbers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from fedfew.data import DataError, SkippedWarning
from tests.data import layouts
from tests.data.layouts import everything, two


def test_missing_and_impossible_labels(tmp_path: Path) -> None:
    files = layouts.images([layouts.picture(i) for i in range(10)])
    layouts.write(
        tmp_path / "a.parquet", {"image": files, "label": pa.array([0, 1, None, 0, 1, -1, 7, 0, 1, 0])}, {"label": ["a", "b"]}
    )
    with pytest.raises(DataError, match=r"a\.parquet, row 3: the label is missing"):
        two(tmp_path / "a.parquet")
    with pytest.warns(SkippedWarning, match=r"left out 3.*row 3: the label is missing.*row 7: the label is outside 0 … 1"):
        assert everything(two(tmp_path / "a.parquet", on_bad="skip")) == 7
    (tmp_path / "b.csv").write_text("x,label\n1,a\n2,\n3,b\n4,a\n5,b\n")
    with pytest.raises(DataError, match=r"b\.csv, row 2: the label is missing"):
        two(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("x,label\n1,0.5\n2,1.5\n3,1\n")
    with pytest.raises(DataError, match=r"c\.csv, row 1: the label is not a class"):
        two(tmp_path / "c.csv", task="classification")


def test_one_class_only(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n" + "1,cat\n2,cat\n3,cat\n" * 3)
    with pytest.raises(DataError, match=r"all 9 rows .* have the same label"):
        two(tmp_path / "a.csv")


def test_true_and_false_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n1.5,true\n2.5,false\n3.5,true\n4.5,false\n")
    assert two(tmp_path / "a.csv").class_names == ("False", "True")
    (tmp_path / "b.csv").write_text("x,label\n1.5,3\n2.5,7\n3.5,3.0\n4.5,7\n")
    assert two(tmp_path / "b.csv").class_names == ("3", "7")
