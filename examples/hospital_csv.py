"""A table of patients: categories, missing values and ids, one client per hospital.

    python examples/hospital_csv.py [FILE.csv]

Without a file, made-up patients are used. A file of your own needs the columns hospital and outcome. With a column patient_id the
visits of one patient stay in one split. All other columns are features, or are left out with a reason.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import fedfew
from fedfew.methods import FedFew

HOSPITALS = ("Basel", "Bern", "Chur", "Davos")


def make_table(path: Path, rows: int = 800) -> None:
    """Fever predicts the outcome everywhere; in Chur and Davos, a laboratory reports the marker with the opposite sign."""
    rng = np.random.default_rng(0)
    lines = ["patient_id,age,sex,marker,fever,hospital,outcome"]
    for i in range(rows):
        hospital = HOSPITALS[i % 4]
        ill = rng.random() < 0.5
        marker = rng.normal(1.5 if ill else -1.5) * (-1 if hospital in ("Chur", "Davos") else 1)
        age = "" if rng.random() < 0.1 else str(rng.integers(20, 90))
        fever = rng.choice(["none", "mild", "high"], p=[0.2, 0.3, 0.5] if ill else [0.5, 0.3, 0.2])
        lines.append(
            f"{i % 4 + 4 * (i // 8)},{age},{rng.choice(['f', 'm'])},{marker:.3f},{fever},{hospital},{'ill' if ill else 'well'}"
        )
    path.write_text("\n".join(lines) + "\n")


def main(path: Path) -> fedfew.training.Run:
    group = "patient_id" if "patient_id" in path.read_text().partition("\n")[0] else None
    federation = fedfew.data.load(path, label="outcome", client="hospital", group=group)
    print(federation)
    print("columns used:", ", ".join(federation.about["columns"]["used"]))
    for column, reason in federation.about["columns"]["left_out"].items():
        print(f"left out: {column} ({reason})")
    run = fedfew.train(federation, "mlp", FedFew(models=2), rounds=30, lr=0.05, batch_size=20)
    for name, accuracy in zip(federation.client_names, run.history.last("served_accuracy"), strict=True):
        print(f"{name}: {100 * accuracy:.0f} % correct")

    # A new patient in the first hospital: the raw values go through what was fitted on that hospital's training rows.
    patient = {"age": [71.0], "sex": ["f"], "marker": [2.0], "fever": ["high"]}
    if set(patient) == set(federation.about["columns"]["used"]):
        probabilities = run.predict_proba(patient, client=run.client_names[0])[0].tolist()
        print("new patient:", ", ".join(f"{c} {p:.2f}" for c, p in zip(run.class_names, probabilities, strict=True)))
    return run


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made_up:
            make_table(Path(made_up) / "patients.csv")
            main(Path(made_up) / "patients.csv")
