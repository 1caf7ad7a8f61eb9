"""Partition specifications as text."""

from __future__ import annotations

import pytest

from fedfew.data.partition_spec import PartitionSpec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("iid", PartitionSpec("iid")),
        ("dirichlet", PartitionSpec("dirichlet", "0.5")),
        ("dirichlet:0.1", PartitionSpec("dirichlet", "0.1")),
        ("dirichlet-published:0.3", PartitionSpec("dirichlet-published", "0.3")),
        ("pathological:10", PartitionSpec("pathological", "10")),
        ("by:writer_id", PartitionSpec("by", "writer_id")),
        ("quantity:0.5", PartitionSpec("quantity", "0.5")),
        ("rotation", PartitionSpec("iid", shift="rotation")),
        ("rotation:2", PartitionSpec("iid", shift="rotation", groups=2)),
        ("dirichlet:0.5+label-permutation:3", PartitionSpec("dirichlet", "0.5", "label-permutation", 3)),
    ],
)
def test_partitions_are_read_and_written(text: str, spec: PartitionSpec) -> None:
    assert PartitionSpec.parse(text) == spec
    assert PartitionSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dirichlt:0.5", "did you mean 'dirichlet'"),
        ("iid+dirichlet", "no shift 'dirichlet'"),
        ("rotation+rotation", "names two shifts"),
        ("iid+rotation+rotation", "joins 3 parts"),
        ("dirichlet:many", "'many' is not a number"),
        ("pathological:2.5", "'2.5' is not a whole number"),
        ("rotation:3", "rotation makes 2 or 4 groups"),
        ("label-permutation:1", "makes ≥ 2 groups"),
        ("by", "needs a column"),
        ("by:", "nothing follows the colon"),
        ("iid:3", "iid takes no value"),
    ],
)
def test_wrong_partitions_are_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PartitionSpec.parse(text)
