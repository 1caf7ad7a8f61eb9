"""Cuts: every row on one side, every side filled, groups whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfew
from fedfew.data import DataError, SkippedWarning, load, split

shares = st.sampled_from([(0.25, 0.0), (0.25, 0.1), (0.5, 0.25), (0.1, 0.0), (0.9, 0.05)])


def _whole(cut: split.Cut, part: np.ndarray) -> bool:
    return np.array_equal(np.sort(np.concatenate([cut.train, cut.val, cut.test])), np.sort(part))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(3, 200), share=shares, seed=st.integers(0, 1000))
def test_plain_and_stratified(n: int, share: tuple[float, float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 2 * n)
    part = rng.permutation(2 * n)[:n]
    plain = split.plain(part, *share, "client 0")
    even = split.stratified(part, labels, *share, "client 0")
    for cut in (plain, even):
        assert _whole(cut, part)
        assert len(cut.train) >= 1
        assert len(cut.test) >= 1
        assert (len(cut.val) >= 1) == (share[1] > 0)
    assert [len(plain.train), len(plain.val), len(plain.test)] == [len(even.train), len(even.val), len(even.test)]
    if n >= 20:
        assert abs(len(plain.test) - n * share[0]) <= 1
    for label in range(4):
        members = (labels[part] == label).sum()
        assert abs((labels[even.test] == label).sum() - members * len(even.test) / n) < 1.01


@settings(max_examples=60, deadline=None)
@given(groups=st.integers(3, 40), share=shares, seed=st.integers(0, 1000))
def test_groups_stay_on_one_side(groups: int, share: tuple[float, float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(groups), rng.integers(1, 5, groups)))
    part = rng.permutation(len(group))
    cut = split.grouped(part, group, "lesion_id", *share, "client 0", {})
    assert _whole(cut, part)
    sides = [set(group[rows].tolist()) for rows in (cut.train, cut.val, cut.test)]
    assert sum(map(len, sides)) == groups
    assert sides[0]
    assert sides[2]
    if groups >= 20:
        assert abs(len(cut.test) / len(part) - share[0]) < 0.15


def test_a_group_of_two_clients_is_on_the_same_side_at_both() -> None:
    group = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2, 3, 4, 5])
    sides: dict[int, int] = {}
    one = split.grouped(np.arange(6), group, "patient", 0.3, 0.0, "client 0", sides)
    two = split.grouped(np.arange(6, 12), group, "patient", 0.3, 0.0, "client 1", sides)
    train, test = ({*group[a].tolist(), *group[b].tolist()} for a, b in ((one.train, two.train), (one.test, two.test)))
    assert not train & test


def test_too_small_to_cut() -> None:
    with pytest.raises(DataError, match="client 7 has 1 sample, too few for 2 splits"):
        split.plain(np.array([4]), 0.25, 0.0, "client 7")
    with pytest.raises(DataError, match="client 7 has 2 samples, too few for 3 splits"):
        split.plain(np.array([4, 5]), 0.25, 0.1, "client 7")
    with pytest.raises(DataError, match=r"into 2: its 5 rows have 1 different patient values.*leaves such clients out"):
        split.grouped(np.arange(5), np.zeros(5, int), "patient", 0.25, 0.0, "client 7", {})


@pytest.mark.parametrize("share", [(0.0, 0.0), (1.0, 0.0), (0.5, 0.5), (0.25, -0.1), (float("nan"), 0.0)])
def test_shares_are_checked(share: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="_share must lie between"):
        split.check_shares(*share)


def test_a_client_too_small_to_cut(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label,site\n" + "".join(f"{i},{i % 2},{'only' if i == 3 else 'main'}\n" for i in range(9)))
    with pytest.raises(DataError, match=r'client 1 \(only\) has 1 sample, too few for 2 splits.*on_bad="skip"'):
        load(tmp_path / "a.csv", partition="by:site")
    with pytest.raises(ValueError, match="partition by:site: the column has 2 different values, too few for 5 clients"):
        load(tmp_path / "a.csv", partition="by:site", clients=5)
    with pytest.warns(SkippedWarning, match=r"client 1 \(only\) has 1 sample"):
        assert len(load(tmp_path / "a.csv", partition="by:site", on_bad="skip")) == 1


def test_a_given_split_is_kept(tmp_path: Path) -> None:
    """Rows 0 … 29 are for training, 30 … 39 for test; the values tell which is which."""
    x, y = np.arange(40.0)[:, None] + 0.5, np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    kept = load(tmp_path / "a.npz", clients=2, partition="iid")
    assert sorted(kept.test.x.flatten().tolist()) == x[30:, 0].tolist()
    assert kept.about["notes"] == ["the data's own test split is kept: 10 of 40 rows"]
    assert kept.about["test_share"] is None
    merged = load(tmp_path / "a.npz", clients=2, partition="iid", test_share=0.25)
    assert sorted(merged.test.x.flatten().tolist()) != x[30:, 0].tolist()
    assert int(merged.test.count.sum()) == 10
    validated = load(tmp_path / "a.npz", clients=2, partition="iid", val_share=0.2)
    assert validated.val is not None
    assert sorted(validated.test.x.flatten().tolist()) == x[30:, 0].tolist()
    assert int(validated.val.count.sum()) == sum(round(0.2 * n) for n in kept.train.count.tolist())


def test_a_given_validation_split_and_a_client_without_test_rows(tmp_path: Path) -> None:
    split_of = ["train"] * 12 + ["validation"] * 4 + ["test"] * 4
    site = ["a", "b"] * 8 + ["a"] * 4
    lines = [f"{i}.5,{i % 2},{site[i]},{split_of[i]}" for i in range(20)]
    (tmp_path / "a.csv").write_text("x,label,site,split\n" + "\n".join(lines) + "\n")
    whole = load(tmp_path / "a.csv", clients=1, partition="iid", scale="none", input=["x"])
    assert whole.val is not None
    assert sorted(whole.val.x.flatten().tolist()) == [12.5, 13.5, 14.5, 15.5]
    assert load(tmp_path / "a.csv", clients=1, partition="iid").about["columns"]["left_out"]["split"] == "the split"
    with pytest.raises(DataError, match=r"client 1 \(b\) has no test rows in the split that the data set comes with"):
        load(tmp_path / "a.csv", client="site")
    with pytest.warns(SkippedWarning, match="no test rows"):
        assert load(tmp_path / "a.csv", client="site", on_bad="skip").client_names == ("a",)


def test_a_patient_on_both_sides_of_a_given_split_is_reported(tmp_path: Path) -> None:
    lines = [f"{i}.5,{i % 2},p{i % 6},{'test' if i > 13 else 'train'}" for i in range(20)]
    (tmp_path / "a.csv").write_text("x,label,patient,split\n" + "\n".join(lines) + "\n")
    notes = load(tmp_path / "a.csv", clients=1, partition="iid", group="patient").about["notes"]
    assert "6 values of patient are in the data's training and test split: test_share=… splits all rows again" in notes


def test_validation_rows_beside_a_given_split_are_drawn_by_group_or_class(tmp_path: Path) -> None:
    lines = [f"{i}.5,{int(i % 10 == 0)},p{i // 4},{'test' if i > 79 else 'train'}" for i in range(100)]
    (tmp_path / "a.csv").write_text("x,label,patient,split\n" + "\n".join(lines) + "\n")
    wanted = {"clients": 1, "partition": "iid", "val_share": 0.25, "input": ["x"], "scale": "none"}
    by_patient, by_class = load(tmp_path / "a.csv", group="patient", **wanted), load(tmp_path / "a.csv", stratify=True, **wanted)
    assert by_patient.val is not None
    assert by_class.val is not None
    patients = [set((samples.x.flatten() // 4).tolist()) for samples in (by_patient.train, by_patient.val)]
    assert not patients[0] & patients[1]
    assert (int(by_class.val.y.sum()), len(by_class.val.y)) == (2, 20)


def test_classes_that_only_test_data_have_are_noted() -> None:
    x = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    train, test = (x[:8], np.array(["a", "b"] * 4)), (x[8:], np.array(["a", "c", "c", "d"]))
    line = "classes that only test data have, which no model can learn: c (2 samples), d (1 sample)"
    assert load({"train": train, "test": test}, clients=2, partition="iid").about["notes"][-1] == line
    assert fedfew.Federation.from_arrays([train], [test]).about["notes"] == [line]
    assert fedfew.Federation.from_arrays([train], [(test[0], train[1][:4])]).about == {}
    thirty = fedfew.Federation.from_arrays([(x[:2], np.array([0, 1]))], [(np.tile(x, (3, 1)), np.arange(36))])
    assert thirty.about["notes"][0].endswith("11 (1 sample) and 24 more")
