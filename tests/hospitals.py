"""A table of patients at three hospitals. Their names would steer a terminal, a spreadsheet and a plot as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NAMES = ("=Basel", "[bold]Bern\x1b[31m", "$Chur_$")
CLASSES = ("ill", "well")


def write(path: Path, rows: int = 90, seed: int = 0, with_label: bool = True) -> Path:
    """Columns: patient_id, age (some missing), smoker, hospital, diagnosis."""
    rng = np.random.default_rng(seed)
    lines = ["patient_id,age,smoker,hospital" + (",diagnosis" if with_label else "")]
    for i in range(rows):
        age, smoker = 20 + 60 * rng.random(), ("yes", "no", "once")[rng.integers(3)]
        label = CLASSES[int(age + 10 * (smoker == "no") + rng.normal(0, 5) > 50)]
        cells = [f"P{i:03d}", "" if i % 11 == 0 else f"{age:.1f}", smoker, NAMES[i % 3]]
        lines.append(",".join([*cells, *([label] if with_label else [])]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
