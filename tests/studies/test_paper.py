"""The paper's numbers: against its source, and against each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedfew.studies import paper

SOURCE = Path(__file__).parents[3] / "shared" / "paper" / "few-for-many.tex"
TABLE1 = [
    *("cifar100-pat-10", "cifar100-pat-20", "femnist-20", "cifar10-dir-10", "cifar10-dir-20", "cifar100-dir-10"),
    *("cifar100-dir-20", "tiny-dir-10", "agnews-dir-20"),
]
JAIN = [
    *("cifar10-dir-10", "cifar10-dir-20", "cifar100-pat-10", "cifar100-dir-10", "cifar100-dir-20", "cifar100-pat-20"),
    *("kvasir", "fedisic"),
]
LABELS = {"table1": "tab:overall_results", "table2": "tab:medical_results", "jain": "tab:jain_suppl"}
MEASURES = {"table1": ["mean", "std"], "table2": ["mean", "std", "min", "max"], "jain": ["jain"]}
COLUMNS = {"table1": TABLE1, "table2": ["kvasir", "fedisic"], "jain": JAIN}
METHODS = ["FedAvg", "FedProx", "FedMTL", "APFL", "Ditto", "FedRep", "FedAMP", "IFCA", "FedFew"]


@pytest.fixture(scope="module")
def source() -> str:
    if not SOURCE.exists():
        pytest.skip("there is no shared/paper beside this checkout")
    return re.sub(r"(?<!\\)%.*", "", SOURCE.read_text(encoding="utf-8"))


def tabular(source: str, label: str) -> dict[str, list[float]]:
    """The numbers of each row of the table with this label."""
    begin = source.index(r"\begin{tabular}", source.index(f"\\label{{{label}}}"))
    rows = {}
    for line in source[begin : source.index(r"\bottomrule", begin)].split(r"\\"):
        head, *cells = line.split("&")
        name = re.search(r"(Local-only|FedFew|[A-Z]\w+|\b\d)\W*(?:\(Ours\)\W*)?(?:~?\\cite\{[^}]*\}\W*)?\s*$", head)
        numbers = [float(text) for cell in cells for text in re.findall(r"\d+\.\d+", cell)]
        if numbers and name:
            rows[name[1]] = numbers
    return rows


@pytest.mark.parametrize("table", list(LABELS))
def test_every_number_of_the_tables_is_the_papers(source: str, table: str) -> None:
    printed = tabular(source, LABELS[table])
    ours = {n.key: n.value for n in paper.numbers().values() if n.source == table}
    expected = {}
    for name, numbers in printed.items():
        row = {"Local-only": "Local"}.get(name, name)
        where = [(measure, column, row, ()) for column in COLUMNS[table] for measure in MEASURES[table]]
        expected |= dict(zip(where, numbers, strict=True))
    assert ours == expected
    assert len(printed) == {"table1": 9, "table2": 10, "jain": 7}[table]


def test_the_table_of_k_is_the_papers(source: str) -> None:
    ours = {n.key: n.value for n in paper.numbers().values() if n.source == "k-agnews-kvasir"}
    expected = {}
    for k, numbers in tabular(source, "tab:vary_k_agnews_kvasir_suppl").items():
        where = [(m, c, "FedFew", (("models", float(k)),)) for c in ("agnews-dir-20", "kvasir") for m in ("min", "mean", "max")]
        expected |= dict(zip(where, numbers, strict=True))
    assert ours == expected
    assert len(ours) == 30


@pytest.mark.parametrize(
    ("words", "measure", "row", "point"),
    [
        (r"\(\$K=1\$\) attains the highest accuracy of ([\d.]+)", "weighted_mean", "FedFew", {"models": 1}),
        (r"improvement over FedAvg's ([\d.]+)", "weighted_mean", "FedAvg", {}),
        (r"one-hot assignments \(entropy \$\\approx ([\d.]+)", "entropy", "FedFew", {"mu": 0.001}),
        (r"one-hot assignments \(entropy .{0,40}max weight \$\\approx ([\d.]+)", "largest", "FedFew", {"mu": 0.001}),
        (r"uniform \(entropy \$\\approx ([\d.]+)", "entropy", "FedFew", {"mu": 1}),
        (r"uniform \(entropy .{0,60}max weight \$\\approx ([\d.]+)", "largest", "FedFew", {"mu": 1.0}),
        (r"CV = ([\d.]+) at \$\\mu=0.001", "alpha_cv", "FedFew", {"mu": 0.001}),
        (r"CV = ([\d.]+) at \$\\mu=1.0", "alpha_cv", "FedFew", {"mu": 1.0}),
        (r"worse fairness \(std \$\\approx ([\d.]+)", "std", "FedFew", {"mu": 0.1}),
        (r"LE=2 achieves ([\d.]+)", "mean", "FedFew", {"local_epochs": 2, "rounds": 1000}),
        (r"LE=16 achieves ([\d.]+)\\%", "mean", "FedFew", {"local_epochs": 16, "rounds": 125}),
    ],
)
def test_numbers_of_the_text(source: str, words: str, measure: str, row: str, point: dict[str, float]) -> None:
    found = paper.number(measure, "cifar10-dir-20", row, point)
    assert found is not None
    assert found.value == float(re.search(words, source)[1])


def test_ranges_of_the_text(source: str) -> None:
    found = {r.measure: (r.low, r.high) for r in paper.ranges()}
    words = {
        "weighted_mean": r"weighted accuracy ranging from ([\d.]+) to ([\d.]+)",
        "std": r"accuracy std \$\\approx ([\d.]+)\$--\$([\d.]+)",
        "mean": r"mean client accuracy \(([\d.]+)--([\d.]+)",
    }
    assert found == {measure: tuple(map(float, re.search(pattern, source).groups())) for measure, pattern in words.items()}


def test_rounds_are_those_of_the_table_of_hyperparameters(source: str) -> None:
    begin = source.index(r"\begin{tabular}", source.index("tab:hyperparameters}"))
    text = source[begin : source.index(r"\bottomrule", begin)]
    rounds = dict(re.findall(r"&\s*([\w -]+?)\s*&\s*[\w-]+\s*&\s*(\d+)\s*&", text))
    names = {"cifar10-": "CIFAR-10", "cifar100": "CIFAR-100", "tiny": "TinyImageNet", "agnews": "AG News", "femnist": "FEMNIST"}
    names |= {"kvasir": "Kvasir", "fedisic": "FedISIC"}
    columns = {n.column for n in paper.numbers().values()}
    assert len(columns) == 11
    for column in columns:
        (name,) = [name for prefix, name in names.items() if column.startswith(prefix)]
        assert paper.updates(column) == int(rounds[name])


def test_jains_indices_follow_from_means_and_spreads() -> None:
    """J = 1 / (1 + (σ/m)²): so the column printed under CIFAR-10 as Pat-10 is Table 1's CIFAR-100, pathological, 10 clients."""
    for number in [n for n in paper.numbers().values() if n.measure == "jain"]:
        mean, std = (paper.number(measure, number.column, number.row) for measure in ("mean", "std"))
        assert mean is not None
        assert std is not None
        assert 1 / (1 + (std.value / mean.value) ** 2) == pytest.approx(number.value, abs=6e-4), number


def test_all_methods_are_there_and_nothing_that_is_not() -> None:
    for column in TABLE1:
        assert [row for row in METHODS if paper.number("mean", column, row) is None] == []
        assert paper.number("mean", column, "Local") is None
    assert paper.number("mean", "kvasir", "Local").value == 92.16
    assert paper.number("mean", "my-own-data", "FedAvg") is None
    assert paper.number("mean", "kvasir", "FedFew", {"models": 3}).value == 92.9  # of the sweep, rounded otherwise than Table 2's
    assert paper.number("mean", "kvasir", "FedFew", {"models": 3, "mu": 0.1}) is None
    assert paper.number("mean", "kvasir", "FedFew", {"init": "distinct"}) is None
    assert paper.updates("my-own-data") is None
