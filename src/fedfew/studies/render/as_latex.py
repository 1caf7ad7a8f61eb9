"""A table as LaTeX with booktabs: the best bold, the second underlined; ± over clients plain, over seeds in brackets."""

from __future__ import annotations

import re
from itertools import groupby

from fedfew.studies.render import cell_text
from fedfew.studies.render.cell_text import CellText
from fedfew.studies.tables.table import TableData

WIDE = 5  # columns beyond which a table goes over both columns of a page
SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
SYMBOLS = {
    "μ": r"$\mu$",
    "α": r"$\alpha$",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "†": r"\textsuperscript{\dag}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "–": "--",
    "…": r"\dots{}",
    "·": r"$\cdot$",
    "ⁿ": "$^n$",
    "→": r"$\to$",
    "θ": r"$\theta$",
}
RANKS = {1: r"\textbf{%s}", 2: r"\underline{%s}"}


def latex(table: TableData) -> str:
    """A floating table, complete."""
    wide = len(table.columns) > WIDE
    environment = "table*" if wide else "table"
    needs = r"\usepackage{booktabs}" + (r" \usepackage{graphicx}" if wide else "")
    tabular = [f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule", *_head(table), r"\midrule"]
    for label, cells in cell_text.rows(table):
        tabular.append(_line(escaped(label), [_cell(cell) for cell in cells]))
        if any(cell.paper for cell in cells):
            tabular.append(_line("", [_small(cell_text.below(cell)) for cell in cells]))
    tabular += [r"\bottomrule", r"\end{tabular}%" if wide else r"\end{tabular}"]
    return "\n".join(
        [
            f"% needs {needs}",
            f"\\begin{{{environment}}}[t]",
            r"\centering",
            f"\\caption{{{escaped(table.title)}. {escaped(table.caption)}}}",
            f"\\label{{tab:{re.sub(r'[^A-Za-z0-9:-]+', '-', table.name)}}}",
            *([r"\resizebox{\textwidth}{!}{%", *tabular, "}"] if wide else tabular),
            *(f"\\par\\raggedright\\footnotesize {escaped(note)}" for note in table.notes),
            f"\\end{{{environment}}}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(SPECIAL.get(character) or SYMBOLS.get(character) or character for character in text)


def _head(table: TableData) -> list[str]:
    heads = _line("", [escaped(head) for head in table.heads])
    if not table.groups:
        return [heads]
    groups, rules, position = [], [], 2
    for group, members in groupby(table.groups):
        count = len(list(members))
        groups.append(f"\\multicolumn{{{count}}}{{c}}{{{escaped(group)}}}")
        rules.append(f"\\cmidrule(lr){{{position}-{position + count - 1}}}")
        position += count
    return [_line("", groups), " ".join(rules), heads]


def _cell(cell: CellText) -> str:
    if not cell.known:
        return f"\\textit{{{escaped(cell.value)}}}"
    value = RANKS.get(cell.rank or 0, "%s") % escaped(cell.value)
    return " ".join(filter(None, [value, _small(cell_text.spreads(cell)), _small(cell.seeds)]))


def _small(text: str) -> str:
    return f"{{\\scriptsize {escaped(text)}}}" if text else ""


def _line(label: str, cells: list[str]) -> str:
    return " & ".join([label, *cells]) + r" \\"
