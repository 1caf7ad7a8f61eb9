"""A whole run as a user starts it (scores every round, checkpoints): the stacked engine beside the sequential one.

The digits MLP, 20 clients × 3 models, one thread. The engines take turns and the least CPU time of each counts, so that other
work on the machine affects the ratio little. The first call, which imports and warms up, is not counted; recording is.

    python benchmarks/end_to_end.py --rounds 100 --repeats 3
    python benchmarks/end_to_end.py --append benchmarks/history.jsonl --note "what changed"
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

import fedfew
from fedfew.bench import history


def seconds_per_round(data: fedfew.Federation, engine: str, rounds: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        fedfew.train(data, "mlp", "fedfew", rounds=rounds, lr=0.1, batch_size=10, engine=engine, folder=folder)
        return (time.process_time() - begin) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--append", type=Path, help="append a line with the figures to this history")
    parser.add_argument("--note", default="", help="what changed, for that line")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = fedfew.data.load("digits", clients=20)
    rounds = {"stacked": given.rounds, "sequential": max(1, given.rounds // 30)}
    seconds_per_round(data, "stacked", 2)
    least = dict.fromkeys(rounds, float("inf"))
    for _ in range(given.repeats):
        for engine, number in rounds.items():
            least[engine] = min(least[engine], seconds_per_round(data, engine, number))
    for engine, seconds in least.items():
        print(f"{engine}: {1000 * seconds:.1f} ms of CPU time per round")
    ratio = least["sequential"] / least["stacked"]
    print(f"ratio: {ratio:.1f}")
    if given.append is not None:
        times = ", ".join(f"{engine} {1000 * seconds:.1f} ms" for engine, seconds in least.items())
        row = {
            "benchmark": f"end to end, digits-mlp 20 × 3, {given.rounds} rounds",
            "result": f"{times} of processor time per round, {ratio:.1f} times",
            "rounds": given.rounds,
            "repeats": given.repeats,
            "seconds_per_round": least,
            "ratio": ratio,
        }
        history.append(given.append, history.measured(row, torch.device("cpu"), given.note))


if __name__ == "__main__":
    main()
