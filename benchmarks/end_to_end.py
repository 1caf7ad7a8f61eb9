"""A whole run as a user starts it (scores every round, checkpoints): the stacked engine beside the sequential one.

The digits MLP, 20 clients × 3 models, one thread. The engines take turns and the least CPU time of each counts, so that other
work on the machine affects the ratio little. The first call, which imports and warms up, is not counted; recording is.

    python benchmarks/end_to_end.py --rounds 100 --repeats 3
"""

import argparse
import tempfile
import time

import torch

import fedfew


def seconds_per_round(data: fedfew.Federation, engine: str, rounds: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        fedfew.train(data, "mlp", "fedfew", rounds=rounds, lr=0.1, batch_size=10, engine=engine, folder=folder)
        return (time.process_time() - begin) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
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
    print(f"ratio: {least['sequential'] / least['stacked']:.1f}")


if __name__ == "__main__":
    main()
