"""Fine-tuning a transformer by FedFew: seconds, memory and bytes per round of adapters and of the whole model.

    python benchmarks/adapters.py --precision tf32 --output results/adapters-gpu
    python benchmarks/adapters.py --quick

The transformer classifies sequences of token ids and has random weights: 6 blocks of width 768 with 12 heads and a vocabulary of
16,000, 55 million parameters. 20 clients have 64 random sequences of 128 tokens each, in batches of 8. FedFew trains K = 4 models
per client: LoRA of rank 8 on the query and value layers with the head, or the whole model. The time of a step does not depend on
what the tokens are, and accuracy is not measured. The round that is scored is not timed. --quick takes tiny sizes, for a trial.

"stacked" trains all clients and models at once, "sequential" one after the other in plain PyTorch. A row whose memory does not
suffice says so. "loss" is the mean of the training losses that clients reported last: both engines see the same batches, so it is
the same for both, up to rounding in the precision chosen.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedfew
from fedfew.adapters import LoRA
from fedfew.bench import machine
from fedfew.federation import Federation, Samples
from fedfew.util.files import write_atomically

WARM_UP = 2  # rounds before any is timed: on a GPU steps are recorded in them
CLASSES, TEST = 4, 4  # classes, and test sequences per client


@dataclass(frozen=True)
class Sizes:
    width: int = 768
    blocks: int = 6
    heads: int = 12
    vocabulary: int = 16_000
    tokens: int = 128
    clients: int = 20
    models: int = 4
    samples: int = 64
    batch: int = 8
    rank: int = 8
    rounds: int = 3  # timed


@dataclass(frozen=True)
class Row:
    name: str
    lora: bool
    engine: str


SEQUENTIAL = "LoRA, sequential"
ROWS = (
    Row("LoRA, stacked", True, "stacked"),
    Row(SEQUENTIAL, True, "sequential"),
    Row("whole model, stacked", False, "stacked"),
    Row("whole model, sequential", False, "sequential"),
)
QUICK = Sizes(width=32, blocks=2, heads=2, vocabulary=100, tokens=12, clients=3, models=2, samples=8, batch=4, rank=2, rounds=1)


class Block(nn.Module):
    """Attention and two linear layers, each with a normalisation before it and a shortcut around it."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.before(tokens)
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        found = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        tokens = tokens + self.out(found.transpose(1, 2).flatten(2))
        return tokens + self.narrow(F.gelu(self.wide(self.between(tokens))))


class Encoder(nn.Module):
    """Token ids [N, tokens] → logits [N, classes] of the mean over tokens."""

    def __init__(self, sizes: Sizes, fused: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.place = nn.Parameter(0.02 * torch.randn(sizes.tokens, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads, fused) for _ in range(sizes.blocks))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = self.embed(ids) + self.place
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens.mean(1)))
        return logits


def made_up(sizes: Sizes) -> Federation:
    draw = torch.Generator().manual_seed(0)

    def split(each: int) -> Samples:
        x = torch.randint(0, sizes.vocabulary, (sizes.clients * each, sizes.tokens), generator=draw)
        count = torch.full((sizes.clients,), each)
        return Samples(x, x[:, 0] % CLASSES, count.cumsum(0) - count, count, each)

    return Federation(split(sizes.samples), split(TEST), CLASSES, torch.arange(sizes.clients), vocabulary=sizes.vocabulary)


def measured(sizes: Sizes, row: Row, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds and bytes per round, and the peak of a GPU's memory; or that memory did not suffice."""
    where = torch.device(given.device)
    torch.manual_seed(0)
    base, ends = Encoder(sizes, given.fused_attention), list[float]()
    if where.type == "cuda":
        gc.collect()  # the graphs of the row before hold memory
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where)

    def ended(_: Any) -> None:
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        ends.append(time.perf_counter())

    last = WARM_UP + sizes.rounds + 1
    try:
        run = fedfew.train(
            made_up(sizes),
            base,
            fedfew.FedFew(models=sizes.models),
            adapters=LoRA(rank=sizes.rank, targets=given.targets) if row.lora else None,
            engine=row.engine,
            device=given.device,
            precision=given.precision,
            rounds=last,
            score_every=last,  # the last alone is scored, and not timed
            batch_size=sizes.batch,
            chunk=given.chunk,
            lr=0.01,
            on_round=ended,
        )
    except MemoryError as error:
        return {"name": row.name, "error": f"out of memory: {error}"}
    seconds = [after - before for before, after in zip(ends[WARM_UP - 1 :], ends[WARM_UP:-1], strict=False)]
    return {
        "name": row.name,
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "bytes_down": int(run.history.last("bytes_down")),
        "bytes_up": int(run.history.last("bytes_up")),
        "peak_bytes": torch.cuda.max_memory_allocated(where) if where.type == "cuda" else None,
        "clients_at_once": run.settings["chunk"],
        "loss": float(run.history.last("losses").mean()),
    }


def table(rows: list[dict[str, Any]]) -> str:
    head = [
        "",
        "seconds per round",
        "times as fast",
        "MB to clients per round",
        "MB to the server",
        "peak GiB",
        "clients at once",
    ]
    lines = [head, ["---"] * len(head)]
    oracle = next((row["seconds"] for row in rows if row["name"] == SEQUENTIAL and "seconds" in row), None)
    for row in rows:
        if "error" in row:
            lines.append([row["name"], row["error"], *[""] * (len(head) - 2)])
            continue
        lines.append(
            [
                row["name"],
                f"{row['seconds']:.3g}",
                "" if oracle is None else f"{oracle / row['seconds']:.2f}",
                f"{row['bytes_down'] / 1e6:,.2f}",
                f"{row['bytes_up'] / 1e6:,.2f}",
                "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f}",
                str(row["clients_at_once"]),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    parser.add_argument("--targets", nargs="+", default=["query", "value"], help="layers that get an adapter")
    parser.add_argument("--fused-attention", action="store_true", help="F.scaled_dot_product_attention, not two products")
    parser.add_argument("--chunk", type=int, help="clients trained at once; as many as memory takes by default")
    parser.add_argument("--rows", nargs="+", default=[row.name for row in ROWS], choices=[row.name for row in ROWS])
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--output", type=Path, help="a folder for adapters.json and adapters.md")
    for field in fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, help=f"{field.default} by default")
    given = parser.parse_args(arguments)
    start = QUICK if given.quick else Sizes()
    sizes = replace(start, **{f.name: value for f in fields(Sizes) if (value := getattr(given, f.name)) is not None})
    about = {
        "parameters": sum(p.numel() for p in Encoder(sizes).parameters()),
        "sizes": asdict(sizes),
        "targets": given.targets,
        "precision": given.precision,
        "fused_attention": given.fused_attention,
        "machine": machine.describe(torch.device(given.device)),
    }
    rows = []
    for row in ROWS:
        if row.name in given.rows:
            rows.append(measured(sizes, row, given))
            print(json.dumps(rows[-1]), flush=True)
            if given.output is not None:  # after every row: a later one may fail
                given.output.mkdir(parents=True, exist_ok=True)
                write_atomically(given.output / "adapters.json", json.dumps(about | {"rows": rows}, indent=1) + "\n")
                write_atomically(given.output / "adapters.md", table(rows) + "\n")
    print(json.dumps(about))
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
