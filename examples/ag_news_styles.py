"""A small language model, pretrained on half of AG News, and few LoRA adapters for clients that write in different styles.

    python -m examples.ag_news_styles                            # studies/ag-news-styles/: half a minute on one core
    fedfew study run results/adapters/styles-rewritten.yaml      # results/adapters/README.md
    fedfew study run results/adapters/styles-topics.yaml

The tokeniser (byte-pair encoding, 600 pieces) and the model come from one half of AG News, the clients' texts from the other.
There are two kinds of style, four styles each:

- topics: a client writes about one of the four topics of AG News, in its own words. In topics-more.jsonl clients have three times
  as many texts. topics-tuning.jsonl has as many again, of other texts, for the choice of learning rates.
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
from examples.transformer import Block
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FOLDER = Path(__file__).parent.parent / "studies" / "ag-news-styles"
TOKENS, PIECES, WIDTH, HEADS, BLOCKS = 16, 600, 32, 4, 2
CLIENTS, STYLES, EACH, MORE = 12, 4, 60, 180  # clients of each kind, their styles, texts per client
LETTERS = "abcdefghijklmnopqrstuvwxyz"
APART, CLOSE = 0.02, 0.005  # standard deviations of what is added to the heads of K models


class LanguageModel(nn.Module):
    """Token ids [N, T] → logits [N, T, PIECES] of the next token; padding is to the right, where no token sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(PIECES, WIDTH), nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PIECES)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = self.embed(ids) + self.place
        later = torch.ones(TOKENS, TOKENS, device=ids.device).triu(1)
        for block in self.blocks:
            tokens = block(tokens, later)
        logits: Tensor = self.head(self.norm(tokens))
        return logits


def model(apart: float = APART) -> nn.Module:
    """The pretrained language model, its head changed a little, differently for each of K models.

    Adapters start at zero: with equal heads all models would be equal, and all clients of IFCA would choose the first for good.
    """
    weights = FOLDER / "base.safetensors"
    if not weights.exists():
        raise ValueError(f"{weights} is not there: run python -m examples.ag_news_styles first")
    module = LanguageModel()
    module.load_state_dict(load_file(weights))
    with torch.no_grad():
        module.head.weight += apart * torch.randn(PIECES, WIDTH)
    return module


def close_model() -> nn.Module:
    """With a head so little changed that the perplexity is that of the pretrained model."""
    return model(CLOSE)


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
    """One file per kind of style. Client c has style c mod STYLES; no text is used twice within a kind, or for tuning."""
    write("topics", own_topics(private), EACH)
    write("rewritten", rewritten(private), EACH)
    for_topics = own_topics(private)
    write("topics-more", for_topics, MORE)
    write("topics-tuning", for_topics, MORE)


def own_topics(private: Sequence[tuple[str, int]]) -> Callable[[int], str]:
    """A function that returns the next text about a topic."""
    topics = [iter([text for text, topic in private if topic == style]) for style in range(STYLES)]
    return lambda style: next(topics[style])


def rewritten(private: Sequence[tuple[str, int]]) -> Callable[[int], str]:
    mixed = iter([text for text, _ in private])
    return lambda style: RULES[style](next(mixed))


def write(kind: str, next_text: Callable[[int], str], each: int) -> None:
    with open(FOLDER / f"{kind}.jsonl", "w", encoding="utf-8") as file:
        for client in range(CLIENTS):
            style = client % STYLES
            for _ in range(each):
                row = {"text": next_text(style), "client": f"style {style}, client {client // STYLES}"}
                file.write(json.dumps(row) + "\n")


def perplexity(module: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        logits = torch.cat([module(part)[:, :-1] for part in x.split(256)])
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten()).exp())


def main(epochs: int = 3, texts: int | None = None) -> dict[str, list[float]]:
    """Pretrain, write the clients' texts, and return the base model's perplexity on them, by kind and style."""
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
    return {
        kind: report(module, kind, folder, share) for kind, share in (("topics", 0.6), ("rewritten", 0.6), ("topics-more", 1 / 3))
    }


def report(module: nn.Module, kind: str, tokenizer: str, test_share: float, seeds: int = 3) -> list[float]:
    """The pretrained model's perplexity on each client's test texts as in the studies: mean by style, over clients and seeds."""
    import fedfew

    settings = {"client": "client", "tokenizer": tokenizer, "max_length": TOKENS, "task": "language-modelling"}
    found = torch.empty(seeds, CLIENTS)
    for seed in range(seeds):
        data = fedfew.data.load(FOLDER / f"{kind}.jsonl", test_share=test_share, seed=seed, **settings)
        for i in range(CLIENTS):
            found[seed, i] = perplexity(module, *(part.long() for part in data.test.of(i)))
    styles = [int(name[len("style ")]) for name in data.client_names]
    means = [float(found[:, [i for i in range(CLIENTS) if styles[i] == style]].mean()) for style in range(STYLES)]
    mean, worst = found.mean(1), found.amax(1).mean()
    text = f"{mean.mean():.1f} (±{mean.std():.1f}), worst client {worst:.1f}, by style {', '.join(f'{p:.1f}' for p in means)}"
    print(f"{kind}: perplexity of the base model {text}", flush=True)
    return means


def known_topics(seed: int) -> list[float]:
    """The perplexity of each client if topics were known: FedAvg-LoRA among the clients of each, otherwise as in the study."""
    import fedfew

    settings = {"client": "client", "tokenizer": str(FOLDER / "tokenizer"), "max_length": TOKENS, "task": "language-modelling"}
    data = fedfew.data.load(FOLDER / "topics-more.jsonl", test_share=1 / 3, seed=seed, **settings)
    found = [0.0] * CLIENTS
    for style in range(STYLES):
        own = [i for i, name in enumerate(data.client_names) if name.startswith(f"style {style},")]
        train, test = ([part.of(i) for i in own] for part in (data.train, data.test))
        group = fedfew.Federation.from_arrays(train, test, classes=PIECES, task="language-modelling")
        training = {"rounds": 10, "score_every": 10, "batch_size": 8, "lr": 0.03, "seed": seed, "device": "cpu"}
        run = fedfew.train(group, close_model, fedfew.FedAvg(), adapters="lora:rank=4", engine="stacked", **training)
        for i, value in zip(own, run.perplexity().tolist(), strict=True):
            found[i] = value
    return found


if __name__ == "__main__":
    main()
