"""What masked aggregation costs: CPU seconds and bytes of a round at a client and at the server, and how well sums hide clients.

    python benchmarks/masked_aggregation.py

Updates are as large as those of three of the paper's CNNs (32 × 32 pixels, 10 classes). "Drop-outs" are clients that drop out
after sharing their secrets: for each of them the server has to compute its masks with all others. The largest weight is the
largest that any one client has for a model: the closer to 100 %, the more a masked sum reveals of that client's update.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fedfew
from fedfew.flower.secure import keys, mask_stream
from fedfew.flower.secure.client import MaskingClient, PublicKeys, usual_threshold
from fedfew.flower.secure.fixed_point import FixedPoint, UInt64Array
from fedfew.flower.secure.server import SEALED_BYTES, MaskingServer
from fedfew.flower.secure.shamir import SHARE_BYTES
from fedfew.flower.secure.weighting import Weights
from fedfew.stack import leaves

MODELS = 3


def measure(clients: int, gone: int, size: int) -> dict[str, float]:
    """A round with so many drop-outs: seconds of one client's steps, of the server's unmasking, and the largest error."""
    seconds: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = work()
        seconds[what] = time.process_time() - begin  # of the last client: all do the same, and the first warms up
        return result

    fixed_point, server = FixedPoint(1024.0, clients), MaskingServer(size)
    draw = np.random.default_rng(0)
    masking = [MaskingClient.begin(client, server.session) for client in range(clients)]
    for client in masking:
        server.join(client.client, client.public)
    server.close()
    for client in masking:
        server.add_shares(client.client, timed("share", partial(client.share_keys, server.participants, server.threshold)))
    shares, total = server.forwarded_shares(), np.zeros(size)
    for client in masking[: clients - gone]:
        update = 0.01 * draw.standard_normal(size) / clients
        total += update
        masked = timed("mask", partial(_masked, client, fixed_point, update, shares[client.client]))
        server.upload(client.client, masked)
    weights = {survivor: [1 / clients] for survivor in server.survivors}
    for client in masking[: clients - gone]:
        server.reveal(client.client, client.reveal(weights))
    unmasked = timed("unmask", server.unmask)
    error = float(np.abs(fixed_point.decode(unmasked) - total).max())
    return {"clients": clients, "gone": gone, **seconds, "error": error, "bound": fixed_point.error}


def _masked(client: MaskingClient, fixed_point: FixedPoint, update: NDArray[np.float64], shares: dict[int, bytes]) -> UInt64Array:
    return client.mask(fixed_point.encode(update), shares, [1 / len(client.participants)])


def seconds_per_mask(size: int) -> float:
    """CPU seconds to compute one mask and add it."""
    target, seed = np.zeros(size, np.uint64), keys.fresh()
    mask_stream.add(target, seed)
    begin = time.process_time()
    mask_stream.add(target, seed)
    return time.process_time() - begin


def bytes_of(clients: int, size: int) -> dict[str, int]:
    """What one client sends and gets besides models and losses."""
    up = PublicKeys.SIZE + (clients - 1) * SEALED_BYTES + 8 * size + clients * SHARE_BYTES
    down = clients * PublicKeys.SIZE + (clients - 1) * SEALED_BYTES + 8 * MODELS
    return {"up": up, "down": down, "plain_up": 4 * size}


def largest_weights(seeds: int) -> dict[str, list[float]]:
    """Rotated digits, 20 clients, FedFew with four models: each round's largest weight that a client has for a model."""
    federation = fedfew.data.digits(20, "rotation")
    found: dict[str, list[float]] = {}
    for mu in (0.02, 0.05, 0.2, 1.0):
        method = fedfew.FedFew(models=4, mu=mu)
        rounds = []
        for seed in range(seeds):
            run = fedfew.train(
                federation, "mlp", method, rounds=100, batch_size=10, lr=0.1, seed=seed, engine="stacked", score_every=1
            )
            counts = federation.train.count
            for losses in run.history["losses"]:
                weights = Weights.of(method, list(range(20)), torch.as_tensor(losses), counts, counts / counts.sum(), {})
                rounds.append(float(weights.normalised.max()))
        found[f"{mu:g}"] = [float(np.median(rounds)), float(np.max(rounds))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    module = fedfew.models.build("cnn", (3, 32, 32), 10, None)
    size = MODELS * sum(t.numel() for t in leaves(dict(module.named_parameters())))
    rows = [measure(n, gone, size) for n in options.clients for gone in (0, n - usual_threshold(n))]
    sizes = {n: bytes_of(n, size) for n in options.clients}
    weights = largest_weights(options.seeds)
    if options.json:
        print(
            json.dumps(
                {
                    "numbers": size,
                    "seconds_per_mask": seconds_per_mask(size),
                    "rounds": rows,
                    "bytes": sizes,
                    "largest_weights": weights,
                },
                indent=1,
            )
        )
        return
    print(f"{size:,} numbers per update (3 CNNs); one mask computed and added: {seconds_per_mask(size):.3f} CPU seconds\n")
    print("| clients | drop-outs | client: share | client: mask | server: unmask | largest error (bound) |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        times = " | ".join(f"{row[step]:.3f} s" for step in ("share", "mask", "unmask"))
        print(f"| {row['clients']} | {row['gone']} | {times} | {row['error']:.1e} ({row['bound']:.1e}) |")
    print("\n| clients | MB up per client and round | plain | kB down besides the models |\n|---|---|---|---|")
    for n, b in sizes.items():
        print(f"| {n} | {b['up'] / 1e6:.2f} | {b['plain_up'] / 1e6:.2f} | {b['down'] / 1e3:.1f} |")
    print(
        f"\nRotated digits, 20 clients, FedFew with 4 models, 100 rounds, {options.seeds} seeds: largest weight of one client\n"
    )
    print("| μ | median round | worst round |\n|---|---|---|")
    for mu, (median, most) in weights.items():
        print(f"| {mu} | {100 * median:.0f} % | {100 * most:.0f} % |")


if __name__ == "__main__":
    main()
