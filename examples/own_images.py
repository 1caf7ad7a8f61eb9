"""Images of your own: one folder per client, one folder per class below.

    python examples/own_images.py [FOLDER]

Without a folder, made-up images are used: bright and dark discs from four cameras, two of which invert the brightness. No single
model can serve both kinds of camera, two models can.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import fedfew
from fedfew.methods import FedFew


def make_images(folder: Path, per_class: int = 40) -> None:
    """Write folder/<camera>/<bright or dark>/<number>.png."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:16, :16]
    for camera in range(4):
        for label, sign in (("bright", 1), ("dark", -1)):
            place = folder / f"camera-{camera}" / label
            place.mkdir(parents=True)
            for i in range(per_class):
                row, column = rng.integers(4, 12, 2)
                disc = ((y - row) ** 2 + (x - column) ** 2 < 12) * 60.0 * sign * (-1 if camera % 2 else 1)
                pixels = np.clip(128 + disc + rng.normal(0, 25, (16, 16)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.png")


def main(folder: Path) -> fedfew.training.Run:
    federation = fedfew.data.load(folder)  # size=64 if the images have different sizes
    print(federation)
    run = fedfew.train(federation, "mlp", FedFew(models=2), rounds=30, lr=0.05, batch_size=10)
    accuracy = run.history.last("served_accuracy")
    for name, share, model in zip(federation.client_names, accuracy, run.choice.tolist(), strict=True):
        print(f"{name}: {100 * share:.0f} % correct, served by model {model}")
    return run


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made_up:
            make_images(Path(made_up))
            main(Path(made_up))
