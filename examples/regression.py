"""A regression: disease progression after one year, at clinics whose patients differ in age and sex.

    python examples/regression.py

The data are real: 442 patients with diabetes, ten measurements each (Efron et al. 2004), which come with scikit-learn. The six
clinics are made up: young, middle-aged and old patients, women and men apart.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_diabetes

import fedfew
from fedfew.evaluation.metrics import evaluate

AGES = ("young", "middle", "old")
SPLITS = 6  # a clinic has about 18 test patients, so a single split says little
SETTINGS = {"rounds": 40, "lr": 0.03, "batch_size": 16, "score_every": 40, "device": "cpu"}


def make_clinics(seed: int = 0) -> tuple[fedfew.Federation, float]:
    """The federation and the standard deviation of the target in its own units.

    The target is standardised: lr, mu and temperature are then of the usual size.
    """
    found = load_diabetes()
    age, sex = found.data[:, 0], found.data[:, 1] > 0
    group = np.searchsorted(np.quantile(age, [1 / 3, 2 / 3]), age)
    x, spread = found.data / found.data.std(0), float(found.target.std())
    y = (found.target - found.target.mean()) / spread
    rng = np.random.default_rng(seed)
    train, test, names = [], [], []
    for i, years in enumerate(AGES):
        for man in (False, True):
            rows = rng.permutation(np.flatnonzero((group == i) & (sex == man)))
            held_out = len(rows) // 4
            test.append((x[rows[:held_out]], y[rows[:held_out]]))
            train.append((x[rows[held_out:]], y[rows[held_out:]]))
            names.append(f"{years}-{'men' if man else 'women'}")
    return fedfew.Federation.from_arrays(train, test, client_names=names, class_names=["progression"], name="diabetes"), spread


def main() -> dict[str, float]:
    federation, spread = make_clinics()
    print(federation)
    print(f"means over {SPLITS} random splits into training and test:")
    means = {}
    for name, method in {"local": "local", "fedavg": "fedavg", "fedfew": fedfew.FedFew(models=2)}.items():
        scores = []
        for seed in range(SPLITS):
            federation, spread = make_clinics(seed)
            run = fedfew.train(federation, "linear", method, loss="mse", progress=False, **SETTINGS)
            scores.append(evaluate(run, federation))
        r2, mae = np.array([s.r2 for s in scores]), spread * np.mean([s.mae for s in scores])
        means[name] = float(r2.mean())
        print(f"{name}: R² {r2.mean():.2f} on average, {r2.min(1).mean():.2f} at the worst clinic, MAE {mae:.0f} points")
    print("One model is as good as two here: the clinics' patients differ, but what a measurement means does not.")
    return means


if __name__ == "__main__":
    main()
