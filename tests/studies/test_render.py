"""Tables as text: terminal, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import fields
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedfew.studies import render, tables
from fedfew.studies.render.as_latex import escaped
from fedfew.studies.render.cell_text import number
from fedfew.studies.tables import Cell, TableData
from tests.studies import made_up

FULL = Cell(88.264, 9.06, 0.314, 3, paper=87.36, paper_over_clients=10.92, rank=1)


def table(*cells: Cell, **fields: object) -> TableData:
    columns = tuple(f"data-{i}" for i in range(len(cells)))
    about = {"name": "mine", "title": "A title", "caption": "A caption.", "protocol": "fair", "unit": "%"}
    return TableData(**{**about, "columns": columns, "rows": (("FedFew", cells),)} | fields)


@pytest.fixture(scope="module")
def big() -> TableData:
    return tables.make_tables([{"kind": "methods", "protocols": ["fair"]}], made_up.table1().results(), "table1")[0]


def printed(t: TableData, width: int, styled: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=styled, color_system="standard" if styled else None)
    console.print(render.terminal(t))
    return console.file.getvalue()


def test_numbers() -> None:
    assert number(1.005, 1) == "1.0"
    assert number(-0.001, 2) == "0.00"
    assert number(-0.001, 2, signed=True) == "+0.00"
    assert number(-3.14159, 3, signed=True) == "−3.142"
    assert number(None, 2) == ""


@pytest.mark.parametrize("width", [60, 100, 140, 250])
def test_a_terminal_of_any_width_shows_every_cell_whole(big: TableData, width: int) -> None:
    text = printed(big, width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert text.splitlines()[0].startswith("table1")
    for name in big.columns:
        assert text.count(name) >= 1
    body = text[: text.index("10–20 clients")]
    for label, cells in big.rows:
        assert body.count(label) == body.count("FedAvg")
        for cell in cells:
            if cell.value is not None:
                assert f"{cell.value:.2f} ±{cell.over_clients:.2f} (±{cell.over_seeds:.2f})" in body
            if cell.difference is not None:
                assert f"{cell.paper:.2f} ±{cell.paper_over_clients:.2f} {number(cell.difference, 2, signed=True)}" in body
    assert "failed" in body
    assert "not run" in body
    assert "2 of 3 seeds" in body
    assert ("…" in body) is False


def test_blocks_of_a_terminal_are_as_few_as_fit(big: TableData) -> None:
    assert [printed(big, width).count("FedRep") for width in (100, 140, 250)] == [3, 2, 1]


def test_best_and_second_stand_out_in_a_terminal() -> None:
    text = printed(table(FULL, Cell(5.0, rank=2), Cell(1.0)), 140, styled=True)
    assert "\x1b[1m88.26\x1b[0m" in text
    assert "\x1b[4m5.00\x1b[0m" in text
    assert "m1.00" not in text


def test_heads_of_several_words_are_broken_and_groups_stand_above() -> None:
    t = table(Cell(1.0), Cell(2.0), columns=("kvasir worst client", "kvasir best client"), groups=("kvasir", "kvasir"))
    lines = printed(t, 60).splitlines()
    heads = [line.split() for line in lines if "kvasir" in line or "worst" in line or "client" in line]
    assert heads == [["kvasir", "kvasir"], ["worst", "best"], ["client", "client"]]


def test_markdown() -> None:
    cells = (FULL, Cell(5.0, None, None, 1, rank=2), Cell(None, note="failed: out | of memory", paper=3.0), Cell(None))
    text = render.markdown(table(*cells, notes=("a_note",), decimals=(2, 1, 2, 2)))
    assert (
        "| FedFew | **88.26** ±9.06 (±0.31)<br><sub>87.36 ±10.92 +0.90</sub> | <u>5.0</u> | *failed*<br><sub>3.00</sub> | – |"
        in text
    )
    assert "- a\\_note" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {6}


def test_markdown_of_groups_keeps_them_apart() -> None:
    t = table(Cell(1.0), Cell(2.0), columns=("kvasir mean", "fedisic mean"), groups=("kvasir", "fedisic"))
    assert "|  | kvasir mean | fedisic mean |" in render.markdown(t)


def test_the_papers_other_score_is_marked() -> None:
    text = render.markdown(table(Cell(80.0, paper=88.0, paper_alike=False)))
    assert "88.00 −8.00†" in text


def balanced(text: str) -> bool:
    """Braces, environments and dollars of LaTeX come in pairs."""
    plain = re.sub(r"\\[\\{}$%&#_]", "", re.sub(r"(?<!\\)%.*", "", text))
    open_environments: list[str] = []
    for what, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", plain):
        if what == "begin":
            open_environments.append(name)
        elif not open_environments or open_environments.pop() != name:
            return False
    return not open_environments and plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0


def body(latex: str) -> list[str]:
    """The rows between the rules."""
    inside = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
    return [line for line in inside.splitlines() if line.endswith(r"\\")]


def cells_in(row: str) -> int:
    wide = sum(int(count) - 1 for count in re.findall(r"\\multicolumn\{(\d+)\}", row))
    return 1 + wide + len(re.findall(r"(?<!\\)&", row))


def test_latex_of_a_wide_table(big: TableData) -> None:
    text = render.latex(big)
    assert balanced(text)
    assert text.isascii()
    assert text.startswith(r"% needs \usepackage{booktabs} \usepackage{graphicx}")
    assert r"\begin{table*}[t]" in text
    assert r"\resizebox{\textwidth}{!}{%" in text
    assert {cells_in(row) for row in body(text)} == {10}
    assert text.count(r"\begin{tabular}{lrrrrrrrrr}") == 1
    assert len(body(text)) == 1 + 10 + 9  # heads, methods, the paper's numbers but for Local
    assert text.count(r"\textbf{") == sum(cell.rank == 1 for cell in big.cells())
    assert text.count(r"\underline{") == sum(cell.rank == 2 for cell in big.cells())


def test_latex_tells_the_two_spreads_apart() -> None:
    text = render.latex(table(FULL))
    assert r"FedFew & \textbf{88.26} {\scriptsize $\pm$9.06 ($\pm$0.31)} \\" in text
    assert r" & {\scriptsize 87.36 $\pm$10.92 +0.90} \\" in text
    assert "resizebox" not in text


def test_latex_of_groups() -> None:
    columns = ("a x", "a y", "b x")
    text = render.latex(table(Cell(1.0), Cell(2.0), Cell(None, note="not run"), columns=columns, groups=("a", "a", "b")))
    assert r" & \multicolumn{2}{c}{a} & \multicolumn{1}{c}{b} \\" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}" in text
    assert r"\textit{not run}" in text
    assert {cells_in(row) for row in body(text)} == {4}
    assert balanced(text)


def test_latex_is_escaped() -> None:
    assert escaped(r"50 % of a_b & c {d} #1 $2 ~ ^ \x") == (
        r"50 \% of a\_b \& c \{d\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{}x"
    )
    t = table(
        Cell(1.0), title="μ = 0.1 × 3_%", rows=(("Fed_Few & co", (Cell(1.0),)),), notes=("100 % of $ & _",), columns=("a_b",)
    )
    text = render.latex(t)
    assert balanced(text)
    assert text.isascii()
    assert r"\caption{$\mu$ = 0.1 $\times$ 3\_\%. A caption.}" in text
    assert r"Fed\_Few \& co & 1.00 \\" in text


def test_all_formulas_of_latex_are_such(big: TableData) -> None:
    from matplotlib.mathtext import MathTextParser

    formulas = set(re.findall(r"(?<!\\)\$[^$]+\$", render.latex(big)))
    assert {r"$\pm$", "$-$"} <= formulas
    for formula in formulas:
        assert MathTextParser("path").parse(formula).width > 0


def from_csv(text: str) -> dict[tuple[str, ...], Cell]:
    """The cells by row, group and column."""
    types = {field.name: str(field.type) for field in fields(Cell)}

    def read(name: str, value: str) -> Any:
        if types[name] == "bool":
            return value == "true"
        convert = float if "float" in types[name] else int if "int" in types[name] else plain
        return convert(value) if value else ("" if types[name] == "str" else None)

    def plain(value: str) -> str:
        return value.removeprefix("'")

    lines = csv.DictReader(io.StringIO(text))
    return {
        (plain(line["row"]), plain(line["group"]), plain(line["column"])): Cell(
            **{name: read(name, line[name]) for name in types}
        )
        for line in lines
    }


def test_csv_is_read_back_without_loss(big: TableData) -> None:
    text = render.csv(big)
    again = from_csv(text)
    assert len(again) == 90
    for label, cells in big.rows:
        for column, cell in zip(big.columns, cells, strict=True):
            assert again[label, "", column] == cell
    lines = list(csv.DictReader(io.StringIO(text)))
    assert {line["protocol"] for line in lines} == {"fair"}
    first = lines[0]
    assert float(first["difference"]) == float(first["value"]) - float(first["paper"])
    assert next(line for line in lines if line["note"] == "failed: CUDA out of memory")["value"] == ""


def test_csv_with_groups_and_odd_names() -> None:
    t = table(Cell(1.0, rank=2), rows=(('a "row", odd', (Cell(1.0, rank=2),)),), columns=("kvasir mean",), groups=("kvasir",))
    assert from_csv(render.csv(t)) == {('a "row", odd', "kvasir", "mean"): Cell(1.0, rank=2)}


def test_every_kind_of_table_is_written_in_every_form() -> None:
    book = made_up.sweep("mu", [0.001, 0.1, 1.0], study="mu", seeds=3)
    for t in tables.make_tables([{"kind": kind} for kind in tables.KINDS], book.results(), "mu"):
        for form in render.FORMS.values():
            assert "FedAvg" in form(t)
        assert balanced(render.latex(t))
        assert {cells_in(row) for row in body(render.latex(t))} == {1 + len(t.columns)}
        for width in (100, 140):
            text = printed(t, width)
            assert max(map(cell_len, text.splitlines())) <= width


# -- names from other people -------------------------------------------------------------------------------------------------

HOSTILE = "=cmd|' /C calc'!A0 [red]<img src=x>[/red] \x1b[2J\x1b]0;gone\x07 $\\input{x}$"


def hostile() -> TableData:
    cell = Cell(1.0, note=HOSTILE)
    return TableData(
        "name", HOSTILE, HOSTILE, "fair", (HOSTILE, "b"), ((HOSTILE, (cell, cell)),), "%", (HOSTILE,), (HOSTILE, "g")
    )


def test_no_form_passes_on_an_escape_code() -> None:
    console = Console(record=True, file=io.StringIO(), width=300, force_terminal=True)
    console.print(render.terminal(hostile()))
    texts = {name: form(hostile()) for name, form in render.FORMS.items()} | {"terminal": console.export_text()}
    for name, text in texts.items():
        assert "\x1b" not in text, name
        assert "\x07" not in text, name
        assert "x1b" in text, name  # but says what was there
    assert "[red]<img src=x>[/red]" in texts["terminal"]  # as it is, not as rich's markup


def test_a_spreadsheet_is_given_no_formula_and_markdown_no_markup() -> None:
    for line in csv.reader(io.StringIO(render.csv(hostile()))):
        assert not any(field.startswith(("=", "@", "+")) for field in line)
    (key, *_) = from_csv(render.csv(hostile()))
    assert key[0].startswith("=cmd|")  # read back as it was
    markdown = render.markdown(hostile())
    assert "<img" not in markdown.replace("\\<img", "")
    assert len({line.count("|") - line.count("\\|") for line in markdown.splitlines() if line.startswith("|")}) == 1
    assert "\\input" not in render.latex(hostile()).replace("\\textbackslash{}input", "")
