"""A small language model, pretrained on half of AG News, and few LoRA adapters for clients that write in different styles.

    python examples/ag_news_styles.py                            # studies/ag-news-styles/: half a minute on one core
    fedfew study run results/adapters/styles-rewritten.yaml      # results/adapters/README.md
    fedfew study run results/adapters/styles-topics.yaml

The tokeniser (byte-pair encoding, 600 pieces) and the model come from one half of AG News, the clients' texts from the other.
There are two kinds of style, four styles each:

- topics: a client writes about one of the four topics of AG News, in its own words.
- rewritten: a client writes about all topics, and its texts are changed by a fixed rule: not at all; the words in reversed
  order; every vowel replaced by the next one, as in a dialect; every letter replaced by another one, as in another language.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FOLDER = Path(__file__).parent.parent / "studies" / "ag-news-styles"
TOKENS, PIECES, WIDTH, HEADS, BLOCKS = 16, 600, 32, 4, 2
CLIENTS, STYLES, EACH = 12, 4, 60  # clients of each kind, their styles, texts per client
LETTERS = "abcdefghijklmnopqrstuvwxyz"
APART = 0.02  # standard deviation of what is added to the heads of K models


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor, later: Tensor) -> Tensor:
        x = self.before(tokens)
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = q @ k.mT / q.shape[-1] ** 0.5 - 1e4 * later
        tokens = tokens + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return tokens + self.narrow(torch.relu(self.wide(self.between(tokens))))


class LanguageModel(nn.Module):
    """Token ids [N, T] → logits [N, T, PIECES] of the next token; padding is to the right, where no token sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(PIECES, WIDTH), nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PIECES)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = self.embed(ids) + self.place
        later = torch.ones(TOKENS, TOKENS, device=ids.device).triu(1)
        for block in self.blocks:
            tokens = block(tokens, later)
        logits: Tensor = self.head(self.norm(tokens))
        return logits


def model() -> nn.Module:
    """The pretrained language model, its head changed a little, differently for each of K models.

    Adapters start at zero: with equal heads all models would be equal, and all clients of IFCA would choose the first for good.
    """
    weights = FOLDER / "base.safetensors"
    if not weights.exists():
        raise ValueError(f"{weights} is not there: run python examples/ag_news_styles.py first")
    module = LanguageModel()
    module.load_state_dict(load_file(weights))
    with torch.no_grad():
        module.head.weight += APART * torch.randn(PIECES, WIDTH)
    return module


def reversed_words(text: str) -> str:
    return " ".join(text.split()[::-1])


def other_vowels(text: str) -> str:
    return text.translate(str.maketrans("aeiou", "eioua"))


def other_letters(text: str) -> str:
    return text.translate(str.maketrans(LETTERS, "".join(np.random.default_rng(0).permutation(list(LETTERS)).tolist())))


RULES: tuple[Callable[[str], str], ...] = (str, reversed_words, other_vowels, other_letters)


def halves() -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Texts, in lower case, with their topics: the public half, and the clients'."""
    from fedfew.data.finding import find
    from fedfew.data.raw import ColumnChoice

    raw = find("ag-news", None, ColumnChoice(), {}).read()
    rows = [(str(text).lower(), int(label)) for text, label in zip(raw.texts or [], raw.labels, strict=True)]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    return [rows[i] for i in order[: len(rows) // 2]], [rows[i] for i in order[len(rows) // 2 :]]


def trained_tokenizer(texts: Sequence[str]) -> str:
    """A folder with a tokeniser of PIECES pieces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["[PAD]"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    folder = FOLDER / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def write_clients(private: Sequence[tuple[str, int]]) -> None:
    """One file per kind of style. Client c has style c mod STYLES; no text is used twice within a kind."""
    topics = [iter([text for text, topic in private if topic == style]) for style in range(STYLES)]
    mixed = iter([text for text, _ in private])
    for kind in ("topics", "rewritten"):
        with open(FOLDER / f"{kind}.jsonl", "w", encoding="utf-8") as file:
            for client in range(CLIENTS):
                style = client % STYLES
                for _ in range(EACH):
                    text = next(topics[style]) if kind == "topics" else RULES[style](next(mixed))
                    file.write(json.dumps({"text": text, "client": f"style {style}, client {client // STYLES}"}) + "\n")


def perplexity(module: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        logits = torch.cat([module(part)[:, :-1] for part in x.split(256)])
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten()).exp())


def main(epochs: int = 3, texts: int | None = None) -> dict[str, list[float]]:
    """Pretrain, write the clients' texts, and return the base model's perplexity on them, by kind and style."""
    import fedfew
    from fedfew.data.tokens import Tokens

    torch.set_num_threads(1)
    torch.manual_seed(0)
    public, private = halves()
    known = [text for text, _ in public[:texts]]
    folder = trained_tokenizer(known)
    write_clients(private)
    tokens = Tokens.of(folder, TOKENS)
    x = torch.from_numpy(tokens.apply(known)).long()
    y = torch.from_numpy(tokens.targets(x.numpy()))
    module = LanguageModel()
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for epoch in range(epochs):
        begin, total = time.perf_counter(), 0.0
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x[rows])[:, :-1].flatten(0, 1), y[rows, 1:].flatten())
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        print(f"epoch {epoch + 1}: loss {total / len(x):.3f}, {time.perf_counter() - begin:.0f} s", flush=True)
    save_file({name: t.contiguous() for name, t in module.state_dict().items()}, FOLDER / "base.safetensors")
    print(f"{sum(p.numel() for p in module.parameters()):,} parameters")
    found = {}
    for kind in ("topics", "rewritten"):
        settings = {"client": "client", "tokenizer": folder, "max_length": TOKENS, "task": "language-modelling"}
        data = fedfew.data.load(FOLDER / f"{kind}.jsonl", test_share=0.6, **settings)
        each = [[i for i, name in enumerate(data.client_names) if name.startswith(f"style {s},")] for s in range(STYLES)]
        parts = [[data.test.of(i) for i in clients] for clients in each]
        found[kind] = [perplexity(module, *(torch.cat(part).long() for part in zip(*pairs, strict=True))) for pairs in parts]
        print(f"{kind}: perplexity of the base model by style {', '.join(f'{p:.1f}' for p in found[kind])}")
    return found


if __name__ == "__main__":
    main()
