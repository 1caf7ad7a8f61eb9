"""Rows of a study compared over the seeds that both have."""

import pytest
from tools.paired_tests import compared

from tests.studies.made_up import Book


def add(book: Book, row: str, seed: int, served: float, **columns: object) -> None:
    book.scored(book.add(row, seed, **columns), [served, served], [1.0, 1.0])


def test_differences_over_shared_seeds_only() -> None:
    book = Book()
    for seed in range(4):
        add(book, "ours", seed, 0.8 + 0.01 * seed)
    for seed in range(3):
        add(book, "theirs", seed, 0.7)
    add(book, "few", 0, 0.1)
    book.add("theirs", 3, status="failed")
    add(book, "theirs", 3, 0.0, column="another")
    served, *others = compared(book.results(), "cifar10-dir-20", "ours")
    assert served.startswith("fair, theirs, served mean: +11.00 over 3 seeds, t-test 0.0027")  # 10, 11, 12: t = 11·√3
    assert served.endswith("sign flips 0.2500")
    assert [line.split(":")[0] for line in others] == [
        "fair, theirs, served worst client",
        "fair, theirs, adapted mean",
        "fair, theirs, adapted worst client",
    ]


def test_protocols_and_grid_points_are_kept_apart() -> None:
    book = Book()
    for protocol, gain in (("fair", 0.1), ("tuned", 0.2)):
        for seed in range(3):
            add(book, "FedAvg", seed, 0.5, protocol=protocol)
            for models in (2, 3):
                add(book, "FedFew", seed, 0.5 + gain * models, protocol=protocol, point={"models": models})
    found = [line for line in compared(book.results(), "cifar10-dir-20", "FedFew, K = 2") if "served mean" in line]
    assert [line.partition(" over")[0] for line in found] == [
        "fair, FedAvg, served mean: +20.00",
        "fair, FedFew, K = 3, served mean: -10.00",
        "tuned, FedAvg, served mean: +40.00",
        "tuned, FedFew, K = 3, served mean: -20.00",
    ]
    with pytest.raises(ValueError, match="one of: FedAvg; FedFew, K = 2; FedFew, K = 3"):
        compared(book.results(), "cifar10-dir-20", "FedFew")
