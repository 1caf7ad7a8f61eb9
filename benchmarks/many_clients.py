"""Many small clients, few of them per round: seconds per round and peak memory.

python benchmarks/many_clients.py --clients 100000 --rounds 6 --score-every 6
"""

import argparse
import resource
import time

import torch

import fedfew
from fedfew.config import TrainConfig
from fedfew.federation import Samples
from fedfew.training.loop import Progress

FEATURES, CLASSES = 16, 10


def split(clients: int, samples: int, random: torch.Generator) -> Samples:
    count = torch.full((clients,), samples)
    x = torch.randn(clients * samples, FEATURES, generator=random)
    y = torch.randint(0, CLASSES, (clients * samples,), generator=random)
    return Samples(x, y, count.cumsum(0) - count, count, samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--score-every", type=int, default=6)
    given = parser.parse_args()
    random = torch.Generator().manual_seed(0)
    train, test = split(given.clients, 20, random), split(given.clients, 5, random)
    data = fedfew.Federation(train=train, test=test, classes=CLASSES, ids=torch.arange(given.clients))
    times = [time.perf_counter()]

    def show(progress: Progress) -> None:
        times.append(time.perf_counter())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"round {progress.round}: {times[-1] - times[-2]:.2f} s, peak {peak:.2f} GiB", flush=True)

    config = TrainConfig(lr=0.1, batch_size=10, participation=0.01, engine="stacked")
    fedfew.train(data, "mlp", "fedfew", config=config, rounds=given.rounds, score_every=given.score_every, on_round=show)


if __name__ == "__main__":
    main()
