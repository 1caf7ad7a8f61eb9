"""Seconds from the start of the process until the clients are served with a given accuracy.

    python benchmarks/time_to_quality.py --data-dir DATA --device cuda
    python benchmarks/time_to_quality.py --quick                          # made-up images on the CPU: does it work here?

CIFAR-10 as PNGs in parquet files on disk, 20 clients by Dirichlet(0.5), FedFew with K = 3, the paper's CNN, recipe "strong". The
run ends with the first scored round in which the mean served accuracy reaches the target. Importing, reading, decoding, recording
and scoring all count. With --cache cold neither decoded images nor compiled kernels of earlier runs are used; with --cache warm
both are, where they exist. --rounds is the length of the schedule: μ falls over its last quarter, and so does the learning
rate with --schedule cosine, so a schedule that is much longer than needed delays the target. "of_first_round" says where the
time of the first round goes; --profile 40 lists the functions that take longest until then, which makes them slower.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spans import Spans

BEGUN = "TIME_TO_QUALITY_BEGUN"  # when the process was started, in its environment
QUICK = {"clients": 4, "model": "mlp", "rounds": 40, "score_every": 2, "lr": 0.05, "device": "cpu"}
QUICK_IMAGES = 400


def timed(given: argparse.Namespace, begun: float) -> dict[str, Any]:
    """Load, train until the target is reached, and when each of these was done."""
    import fedfew

    load, train = fedfew.data.load, fedfew.train  # names are imported when first used
    ends = {"import": time.time()}
    federation = load("cifar10", data_dir=given.data_dir, clients=given.clients, partition="dirichlet:0.5")
    ends["load"] = time.time()
    scored: list[tuple[int, float, float]] = []  # round, seconds since the process was started, served accuracy
    events: list[str] = []
    spans, profile = Spans(), cProfile.Profile()
    spans.watch()
    of_first_round: dict[str, float] = {}

    def watch(progress: fedfew.Progress) -> str | None:
        now = time.time()
        if "first_round" not in ends:
            ends["first_round"] = now
            of_first_round.update(spans.so_far())
            profile.disable()
        events.extend(progress.events)
        if progress.served is None or (progress.round % given.score_every and not progress.done):
            return None
        scored.append((progress.round, now - begun, progress.served))
        print(f"round {progress.round}: {now - begun:.1f} s, {100 * progress.served:.2f} %", file=sys.stderr, flush=True)
        return "stop" if progress.served >= given.target else None

    if given.profile:
        profile.enable()
    train(
        federation,
        given.model,
        fedfew.FedFew(models=3),
        recipe="strong",
        rounds=given.rounds,
        schedule=given.schedule,
        lr=given.lr,
        batch_size=50,
        seed=given.seed,
        precision=given.precision,
        score_every=given.score_every,
        device=given.device,
        progress=False,
        on_round=watch,
    )
    if given.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(given.profile)
    reached = bool(scored) and scored[-1][2] >= given.target
    parts = {"import": ends["import"] - begun, "load": ends["load"] - ends["import"]}
    parts["first_round"] = ends["first_round"] - ends["load"]  # with all that is prepared, recorded and compiled before it
    parts["further_rounds"] = begun + scored[-1][1] - ends["first_round"]
    when = f"after {scored[-1][1]:.1f} s" if reached else "not reached"
    within = parts["first_round"] - sum(s for name, s in of_first_round.items() if "other threads" not in name)
    of_first_round["all else"] = within
    each = ", ".join(f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in parts.items())
    return {
        "benchmark": f"time to {100 * given.target:g} % served",
        "result": f"{when}, {scored[-1][0]} rounds ({each})",
        "reached": reached,
        "seconds": scored[-1][1] if reached else None,
        "rounds": scored[-1][0],
        "served": scored[-1][2],
        "parts": parts,
        "of_first_round": of_first_round,
        "scored": scored,
        "events": events,
    }


def quick_data(folder: Path) -> None:
    """Images of ten colours with noise, in the layout of CIFAR-10's files."""
    import io

    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(QUICK_IMAGES) % 10)
    colours = random.integers(0, 256, (10, 1, 1, 3))
    pixels = np.clip(colours[labels] + random.normal(0, 20, (QUICK_IMAGES, 32, 32, 3)), 0, 255).astype(np.uint8)
    images = []
    for array in pixels:
        png = io.BytesIO()
        Image.fromarray(array).save(png, "PNG")
        images.append({"bytes": png.getvalue(), "path": None})
    (folder / "cifar10").mkdir()
    table = pyarrow.table({"img": images, "label": pyarrow.array(labels)})
    pyarrow.parquet.write_table(table, folder / "cifar10" / "train-00000-of-00001.parquet")


def started(arguments: list[str], given: argparse.Namespace) -> int:
    """Start the process that is timed; with --cache cold in an environment without earlier results."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if given.cache == "cold":
            environment |= {name: str(Path(folder) / name.lower()) for name in ("FEDFEW_CACHE", "TRITON_CACHE_DIR")}
        if given.quick:
            quick_data(Path(folder))
            arguments = [*arguments, "--data-dir", folder]
        environment[BEGUN] = str(time.time())
        return subprocess.run([sys.executable, __file__, *arguments], env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.85, help="mean served accuracy")
    parser.add_argument("--data-dir", help="folder with cifar10/*.parquet; else $FEDFEW_DATA")
    parser.add_argument("--rounds", type=int, default=400, help="length of the schedule")
    parser.add_argument("--schedule", default="constant", choices=("constant", "cosine", "step"))
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--score-every", type=int, default=10, help="rounds between two looks at the accuracy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="tf32", help="of the factors of products, as of fedfew run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", default="cold", choices=("cold", "warm"))
    parser.add_argument("--quick", action="store_true", help="few made-up images, an MLP, on the CPU; the figures mean nothing")
    parser.add_argument("--profile", type=int, default=0, help="so many functions of the first round are listed")
    parser.add_argument("--note", default="", help="a remark kept with the figures")
    parser.add_argument("--append", type=Path, help="append the JSON row to this file")
    parser.set_defaults(clients=20, model="cnn")
    given = parser.parse_args()
    if BEGUN not in os.environ:
        sys.exit(started(sys.argv[1:], given))
    if given.quick:
        vars(given).update(QUICK)
    row = timed(given, float(os.environ[BEGUN]))
    row["settings"] = {
        name: value for name, value in vars(given).items() if name not in ("append", "note", "data_dir", "profile")
    }

    from fedfew.bench import history
    from fedfew.util.devices import device_named

    entry = history.measured(row, device_named(given.device), given.note)
    if given.append is not None:
        history.append(given.append, entry)
    print(json.dumps(entry))
    for name, seconds in row["of_first_round"].items():
        print(f"{seconds:7.2f} s  {name}", file=sys.stderr)
    if not row["reached"]:
        sys.exit(f"{100 * given.target:g} % was not reached in {row['rounds']} rounds: {100 * row['served']:.2f} %")


if __name__ == "__main__":
    main()
