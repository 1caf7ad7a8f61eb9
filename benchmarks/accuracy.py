"""Does the fast way of training end where the plain one does? FedFew by both, and by the fast one with other seeds.

    python benchmarks/accuracy.py                                                    rotated digits, some minutes on a CPU
    python benchmarks/accuracy.py --dataset cifar10 --device cuda --rounds 50        the paper's CNN, 20 clients × 3 models

The plain way is the sequential engine in fp32. In the first rounds the two agree to rounding; training then amplifies what
rounding decided, as it amplifies a change of seed. So the last rounds are held against the spread over seeds of the fast way: the
same data, other initial models and batches.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedfew
from fedfew.report import SCORES, mean_curve
from fedfew.training.from_settings import make_federation, training_arguments
from fedfew.training.progress import display
from fedfew.training.resolve import resolve
from fedfew.training.run import Run
from fedfew.training.settings import Settings

FIRST = 5  # rounds in which the two ways should agree


def trained(settings: Settings, federation: fedfew.Federation, label: str, shown: Any) -> Run:
    return fedfew.train(federation, on_round=shown.run(label), **training_arguments(settings))


def compared(plain: Run, fast: list[Run]) -> dict[str, Any]:
    """The first rounds apart, the last rounds' means, and the seeds' spread, for both scores; accuracies in percent."""
    found: dict[str, Any] = {"rounds": plain.round, "seeds": len(fast), "round_by_round": plain.history.round.tolist()}
    for score in SCORES:
        slow = 100 * mean_curve(plain.history, score)
        quick = [100 * mean_curve(run.history, score) for run in fast]
        last = [float(curve[-1]) for curve in quick]
        spread = statistics.stdev(last) if len(last) > 1 else float("nan")
        found[score] = {
            "plain": float(slow[-1]),
            "fast_same_seed": last[0],
            "fast_mean": statistics.mean(last),
            "fast_std_over_seeds": spread,
            "apart_in_stds": abs(float(slow[-1]) - statistics.mean(last)) / spread,
            "first_rounds_apart": np.abs(slow - quick[0])[:FIRST].tolist(),
            "plain_curve": slow.tolist(),
            "fast_curve": quick[0].tolist(),
        }
    losses = plain.history.losses[:FIRST], fast[0].history.losses[:FIRST]
    found["first_losses_apart"] = np.nanmax(
        np.abs(losses[0] / losses[1] - 1), axis=(1, 2)
    ).tolist()  # largest relative difference
    return found


def shown_as_text(found: dict[str, Any], plain: Settings, fast: Settings) -> str:
    lines = [
        f"FedFew on {plain.dataset}, {found['rounds']} rounds. plain: {plain.engine} {plain.precision}; "
        f"fast: {fast.engine} {fast.precision}, {found['seeds']} seeds",
        "reported losses apart in rounds 1 …: " + ", ".join(f"{x:.1e}" for x in found["first_losses_apart"]),
    ]
    for score in SCORES:
        row = found[score]
        lines.append(
            f"{score:>8}: plain {row['plain']:.2f} %, fast {row['fast_same_seed']:.2f} % (same seed), {row['fast_mean']:.2f} ± "
            f"{row['fast_std_over_seeds']:.2f} % over seeds: {row['apart_in_stds']:.1f} standard deviations apart; "
            "first rounds apart by " + ", ".join(f"{x:.2f}" for x in row["first_rounds_apart"])
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--partition", default=None)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    asked = parser.parse_args()
    common = {"dataset": asked.dataset, "rounds": asked.rounds, "device": asked.device}
    common |= {} if asked.partition is None else {"partition": asked.partition}
    fast = resolve(common | {"engine": "stacked", "precision": asked.precision}, {})
    plain = replace(fast, engine="sequential", precision="fp32")
    federation, _ = make_federation(fast)
    from rich.console import Console

    with display(Console(stderr=True), runs=asked.seeds + 1) as shown:
        quick = [trained(replace(fast, seed=s), federation, f"fast, seed {s}", shown) for s in range(asked.seeds)]
        slow = trained(plain, federation, "plain", shown)
    found = compared(slow, quick)
    print(shown_as_text(found, plain, fast))
    if asked.json:
        asked.json.write_text(json.dumps(found | {"settings": fast.as_config()}, indent=1))


if __name__ == "__main__":
    main()
