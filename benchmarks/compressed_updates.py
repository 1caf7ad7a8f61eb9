"""What compressing updates costs in accuracy and saves in bytes: FedFew with four models on rotated digits, 20 clients.

    python benchmarks/compressed_updates.py

Every seed gives other initial models and batches. ± is one standard deviation over the seeds' means.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

import fedfew
from fedfew.local import Local
from fedfew.methods import Method, compression
from fedfew.methods.base import Fresh, Outcome, Reply
from fedfew.methods.wrapper import KeepingWrapper
from fedfew.report import last_scores, same_grouping
from fedfew.stack import Tree, branch, bytes_each, named_leaves, tree_map


@dataclass
class Compressed(Reply):
    """A reply as it arrives, and the bytes it travelled as."""

    bytes_sent: int = 0

    @property
    def bytes_each(self) -> int:
        return self.bytes_sent


@dataclass(frozen=True)
class WithCompression(KeepingWrapper):
    """A method whose clients send their updates compressed (:mod:`fedfew.methods.compression`); all else is as the method says.

    With feedback for methods whose updates look like what they send out: FedFew, FedAvg, FedProx, not IFCA. It is no method by
    itself; on a network the setting ``compression = "int8"`` does the same.
    """

    way: compression.Way
    feedback: bool = True
    """Whether a client adds what was lost in one round to its update of the next."""

    def init(self, fresh: Fresh, clients: int) -> tuple[Tree, Tree]:
        server, own = self.method.init(fresh, clients)
        lost: Tree = {}
        if self.feedback:
            sent_out = self.method.dispatch(server, torch.tensor([0]))
            lost = tree_map(lambda t: t.new_zeros(clients, *t.shape[1:]), sent_out)
        return server, {"own": own, "lost": lost}

    def client(self, received: Tree, own: Tree, local: Local) -> Outcome:
        outcome = self.method.client(received, branch(own, "own"), local)
        reply, lost = outcome.reply, branch(own, "lost")
        if lost and _shapes(reply.update) != _shapes(lost):
            raise ValueError(f"feedback must be off for {self.name}: its updates do not look like what it sends out")
        if self.feedback:
            sent, lost = compression.with_feedback(reply.update, lost, self.way, axes=2)
        else:
            sent = compression.encode(reply.update, self.way, axes=2)
        arrived = compression.decode(sent, reply.update, self.way)
        bytes_sent = bytes_each(sent | reply.all_losses)
        compressed = Compressed(arrived, reply.losses, reply.samples, reply.unseen, bytes_sent)
        return Outcome(compressed, {"own": outcome.own, "lost": lost}, outcome.adapted, outcome.mixture)

    def serve(self, received: Tree, own: Tree) -> Tree:
        return self.method.serve(received, branch(own, "own"))


def _shapes(tree: Tree) -> dict[str, torch.Size]:
    return {path: t.shape for path, t in named_leaves(tree)}


METHOD = fedfew.FedFew(models=4)
WAYS: dict[str, Callable[[], Method]] = {
    "none": lambda: METHOD,
    "bf16": lambda: WithCompression(METHOD, "bf16", feedback=False),
    "int8": lambda: WithCompression(METHOD, "int8"),
    "int8, no feedback": lambda: WithCompression(METHOD, "int8", feedback=False),
}


def measure(federation: fedfew.Federation, method: Method, seed: int, rounds: int) -> dict[str, float]:
    run = fedfew.train(
        federation, "mlp", method, rounds=rounds, batch_size=10, lr=0.1, seed=seed, engine="stacked", score_every=rounds
    )
    scores = last_scores(run)
    return {
        "served": scores["served"].mean,
        "adapted": scores["adapted"].mean,
        "groups_found": same_grouping(federation.groups, run.choice),
        "bytes_up": float(run.history.last("bytes_up")) / len(federation),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    federation = fedfew.data.digits(20, "rotation")
    found = {
        way: [measure(federation, make(), seed, options.rounds) for seed in range(options.seeds)] for way, make in WAYS.items()
    }
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"FedFew, 4 models, rotated digits, 20 clients, {options.rounds} rounds, {options.seeds} seeds; test accuracy in %\n")
    print("| updates | served | adapted | groups found | kB up per client and round | relative to none |")
    print("|---|---|---|---|---|---|")
    plain = found["none"][0]["bytes_up"]
    for way, seeds in found.items():
        cells = [_percent([one[score] for one in seeds]) for score in ("served", "adapted")]
        groups = sum(bool(one["groups_found"]) for one in seeds)
        up = seeds[0]["bytes_up"]
        print(f"| {way} | {' | '.join(cells)} | {groups} of {len(seeds)} | {up / 1e3:.1f} | {up / plain:.2f} |")


def _percent(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.2f} ± {100 * spread:.2f}"


if __name__ == "__main__":
    main()
