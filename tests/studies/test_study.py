"""Study files: what is read, and what is answered to mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfew.studies.study import StudyError, catalogue, parse, read
from tests.studies.small import study, text

PAPER_COLUMNS = [
    "cifar100-pat-10",
    "cifar100-pat-20",
    "femnist-20",
    "cifar10-dir-10",
    "cifar10-dir-20",
    "cifar100-dir-10",
    "cifar100-dir-20",
    "tiny-dir-10",
    "agnews-dir-20",
]


def test_a_file_is_read():
    found = study(title="Title", about="A\nB", protocols=["published", "fair"], seeds={"published": 1, "fair": 3})
    assert (found.name, found.title, found.about, found.source) == ("tiny", "Title", "A B", "tiny.yaml")
    assert found.protocols == ("published", "fair")
    assert found.seeds == {"published": 1, "fair": 3, "tuned": 1}
    assert list(found.columns) == ["iid"]
    assert found.rows["FedFew"] == {"method": {"name": "fedfew", "models": 2}}
    assert found.points == ({},)


def test_unless_said_otherwise_a_study_is_fair_with_one_seed_and_named_by_its_name():
    found = study(seeds=None)
    assert (found.protocols, found.seeds["fair"], found.title) == (("fair",), 1, "tiny")


def test_a_grid_is_all_combinations_and_a_sweep_what_is_listed():
    assert study(grid={"models": [1, 2], "mu": [0.1, 1]}).points == (
        {"models": 1, "mu": 0.1},
        {"models": 1, "mu": 1},
        {"models": 2, "mu": 0.1},
        {"models": 2, "mu": 1},
    )
    sweep = [{"local_epochs": 1, "rounds": 4}, {"local-epochs": 2, "rounds": 2}]
    assert study(sweep=sweep).points == ({"local_epochs": 1, "rounds": 4}, {"local_epochs": 2, "rounds": 2})


MISTAKES = {
    "unknown entry": (text(colums={}), "tiny.yaml, the file: there is no entry 'colums'; did you mean 'columns'?"),
    "not yaml": ("a: [", "tiny.yaml is not YAML that can be read"),
    "not a mapping": ("- a", "tiny.yaml, the file: ['a'] must be names and values"),
    "twice": ("name: a\nname: b", "'name' is there twice"),
    "no name": (text(name=None), "tiny.yaml, name: is missing"),
    "name with a slash": (text(name="a/b"), "tiny.yaml, name: 'a/b' must be made of letters"),
    "name of the runs' folder": (text(name="runs"), "not be 'runs'"),
    "name is a list": (text(name=[1]), "tiny.yaml, name: [1] must be text"),
    "no columns": (text(columns=None), "tiny.yaml, columns: is missing"),
    "no rows": (text(rows={}), "tiny.yaml, rows: is missing"),
    "columns a list": (text(columns=["a"]), "tiny.yaml, columns: ['a'] must be names and values"),
    "column not settings": (text(columns={"a": 3}), "tiny.yaml, columns → a: 3 must be names and values"),
    "star in a name": (text(columns={"a*": {}}), "tiny.yaml, columns → a*: a name must not contain"),
    "row without method": (text(rows={"X": {"lr": 1}}), "tiny.yaml, rows → X: has no method: write method: fedavg"),
    "unknown protocol": (text(protocols=["fare"]), "tiny.yaml, protocols: there is no protocol 'fare'; did you mean 'fair'?"),
    "protocol twice": (text(protocols=["fair", "fair"]), "each once"),
    "protocols a number": (text(protocols=3), "tiny.yaml, protocols: 3 must be a list of published and fair"),
    "seeds zero": (text(seeds=0), "tiny.yaml, seeds: 0 must be a whole number from 1 to 1,000"),
    "a billion seeds": (text(seeds=10**9), "tiny.yaml, seeds: 1000000000 must be a whole number from 1 to 1,000"),
    "more seeds than digits": (text(seeds=10**4000), "tiny.yaml, seeds: a number of more than 50 digits must be a whole number"),
    "a grid without end": (
        text(grid={f"x{i}": list(range(100)) for i in range(8)}),
        "tiny.yaml, grid: has 10,000,000,000,000,000 points, and at most 1,000 are possible",
    ),
    "an axis without end": (text(grid={"lr": list(range(2000))}), "tiny.yaml, grid → lr: has 2,000 entries"),
    "a sweep without end": (text(sweep=[{"lr": i} for i in range(2000)]), "tiny.yaml, sweep: has 2,000 entries"),
    "aliases of aliases": (
        "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)) + "name: *a59",
        "tiny.yaml is not YAML that can be read: with its aliases written out it has more than 100,000 values",
    ),
    "an escape sequence": (
        text(rows={"a\x1b[2J": {"method": "fedavg"}}),
        "tiny.yaml, rows → a\\x1b[2J: a name must not contain line breaks or control characters",
    ),
    "seeds of one": (text(seeds={"fair": True}), "tiny.yaml, seeds → fair: True must be a whole number from 1 to 1,000"),
    "seeds of a misspelt": (text(seeds={"fare": 1}), "there is no protocol 'fare'; did you mean 'fair'?"),
    "seeds of none": (text(seeds={"published": 1}), "tiny.yaml, seeds: has no number for the protocol 'fair'"),
    "a seed in base": (
        text(base={"seed": 3}),
        "tiny.yaml, base: seed is set by the plan, for every seed: say how many under seeds",
    ),
    "a data seed": (text(columns={"a": {"data-seed": 3}}), "tiny.yaml, columns → a: data_seed is set by the plan"),
    "grid and sweep": (text(grid={"lr": [1]}, sweep=[{"lr": 2}]), "tiny.yaml, sweep: a study has a grid"),
    "grid of a number": (text(grid={"models": 3}), "tiny.yaml, grid → models: 3 must be a list of values, e.g. [1, 2, 3]"),
    "grid twice": (text(grid={"models": [3, 3]}), "tiny.yaml, grid → models: [3, 3] is empty, or names a value twice"),
    "grid empty": (text(grid={"models": []}), "tiny.yaml, grid → models: [] is empty"),
    "sweep twice": (text(sweep=[{"lr": 2}, {"lr": 2}]), "tiny.yaml, sweep → 2: {'lr': 2} is empty, or there twice"),
    "sweep a mapping": (text(sweep={"lr": 2}), "tiny.yaml, sweep: {'lr': 2} must be a list of mappings"),
    "tables a mapping": (text(tables={"kind": "methods"}), "tiny.yaml, tables: {'kind': 'methods'} must be a list of mappings"),
    "table without kind": (text(tables=[{"score": "served"}]), "tiny.yaml, tables → 1: {'score': 'served'} has no kind"),
    "call and rows": (text(call="a:b"), "tiny.yaml, call: a study that calls a function has no columns, rows"),
    "call without colon": ("name: a\ncall: b", "tiny.yaml, call: 'b' must be module:function"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named_with_its_place_and_what_would_be_right(case):
    contents, message = MISTAKES[case]
    with pytest.raises(StudyError) as raised:
        parse(contents, "tiny.yaml")
    assert message in str(raised.value)


def test_a_wrong_kind_of_table_or_figure_is_refused_with_its_place(monkeypatch):
    def refuse(kind: str, spec: dict[str, str]) -> None:
        raise ValueError(f"there is no kind of {kind} {spec['kind']!r}")

    monkeypatch.setattr("fedfew.studies.output.check", refuse)
    with pytest.raises(StudyError, match=r"tiny\.yaml, figures → 1: there is no kind of figures 'pie'"):
        study(figures=[{"kind": "pie"}])


def test_a_call():
    found = parse("name: a\ncall: some.module:function", "a.yaml")
    assert (found.call, found.columns, found.protocols) == ("some.module:function", {}, ())


def test_where_a_study_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(text(name="mine"))
    assert read("mine.yaml").name == "mine"
    assert read(tmp_path / "mine.yaml").source == str(tmp_path / "mine.yaml")
    with pytest.raises(ValueError, match=r"there is no study 'mine'.*mine\.yaml is a file here: give its whole name"):
        read("mine")
    with pytest.raises(ValueError, match="there is no study 'table3'; did you mean 'table"):
        read("table3")
    with pytest.raises(ValueError, match=r"there is no study file other\.yaml; 'fedfew study new NAME' writes one"):
        read("other.yaml")
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyError, match=r"binary\.yaml is not a text file"):
        read("binary.yaml")


def test_the_catalogue_holds_the_papers_tables_and_figures():
    names = {"table1", "table2", "k-cifar10", "k-agnews-kvasir", "local-epochs", "mu", "fairness", "costs", "theory"}
    assert names | {
        "natural",
        "attacks",
        "privacy",
        "privacy-cifar10",
        "leaderboard",
        "leaderboard-methods",
        "leaderboard-wide",
        "little-data",
        "short-runs",
        "tuned",
        "quick",
        "quick-k",
        "quick-mu",
        "quick-epochs",
    } == set(catalogue())
    for name in catalogue():
        found = read(name)
        assert found.name == name
        assert found.about
        assert found.call or found.tables, name
    assert list(read("table1").columns) == PAPER_COLUMNS
    methods = ["FedAvg", "FedProx", "FedMTL", "APFL", "Ditto", "FedRep", "FedAMP", "IFCA", "FedFew"]
    assert list(read("table1").rows) == [*methods, "Local"]
    assert list(read("table2").rows) == ["Local", *methods]
    assert [point["models"] for point in read("k-cifar10").points] == list(range(1, 11))
    assert [point["models"] for point in read("k-agnews-kvasir").points] == list(range(1, 6))
    assert [point["mu"] for point in read("mu").points] == [0.001, 0.01, 0.1, 1]
    epochs = [(point["local_epochs"], point["rounds"]) for point in read("local-epochs").points]
    assert epochs == [(1, 2000), (2, 1000), (4, 500), (8, 250), (16, 125)]
