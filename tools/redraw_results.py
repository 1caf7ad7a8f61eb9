"""Make the committed figures and tables of studies again from their parquet files, as after a change of their style or wording.

python tools/redraw_results.py results            # whatever lies there as KIND-PROTOCOL.png or .md, and nothing else
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedfew.report.plots import written
from fedfew.studies import figures, output, store
from fedfew.studies.study import catalogue, read


def redraw(folder: Path) -> list[Path]:
    """The files that were written anew in a folder with the results of one or more studies."""
    results = store.read(folder)
    done = []
    for name in dict.fromkeys(results.runs["study"].to_pylist()):
        if name not in catalogue():
            raise ValueError(f"{folder}: there is no study {name!r} in the catalogue that says how its figures are drawn")
        study = read(name)
        for drawing in figures.drawings(list(study.figures), results, name):
            if (path := folder / f"{drawing.name}.png").exists():
                with written(path, width=drawing.width, height=drawing.height) as figure:
                    drawing.paint(figure)
                done.append(path)
        for table in output.tables(study, results):
            if (path := folder / f"{output.file_name(table)}.md").exists():
                path.write_text(output.rendered(table, "markdown"), encoding="utf-8")
                done.append(path)
    return done


if __name__ == "__main__":
    for place in sys.argv[1:]:
        for found in sorted(Path(place).rglob("runs.parquet")):
            print(*redraw(found.parent), sep="\n")
