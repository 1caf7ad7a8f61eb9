"""Small files of texts, a tokeniser made by ``tokenizers`` and a language model: no download, no transformers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn

WORDS = ("one", "two", "three", "four", "five", "six")
UNKNOWN, PAD, FIRST = 0, 1, 2  # FIRST: the token of "one"
VOCABULARY = FIRST + len(WORDS)


def tokenizer_folder(path: Path, words: tuple[str, ...] = WORDS) -> str:
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(("[UNK]", "[PAD]", *words))}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    path.mkdir(parents=True)
    tokenizer.save(str(path / "tokenizer.json"))
    return str(path)


def rows(clients: int = 4, each: int = 12) -> list[dict[str, str]]:
    """Even clients count upwards, odd ones downwards; the label is the direction."""
    found = []
    for client in range(clients):
        for i in range(each):
            words = [WORDS[(i + step * (-1) ** client) % len(WORDS)] for step in range(4 + i % 3)]
            found.append({"text": " ".join(words), "label": str(client % 2), "writer": f"w{client}"})
    return found


def write_rows(path: Path, given: list[dict[str, str]]) -> str:
    """As .csv, .jsonl or .parquet, by the path's ending."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(given[0]))
            writer.writeheader()
            writer.writerows(given)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(given), path)
    return str(path)


def unlabelled(given: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"text": row["text"], "writer": row["writer"]} for row in given]


class Bigram(nn.Module):
    """A row of logits per token, which are all that decides the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)
        with torch.no_grad():
            self.table.weight.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.table(x)
        return logits


def bigram() -> nn.Module:
    return Bigram()
