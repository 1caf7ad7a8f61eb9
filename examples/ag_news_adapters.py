"""A small transformer, pretrained on half of AG News, and few LoRA adapters for clients that have the other half.

    pip install wordllama
    python -m examples.ag_news_adapters                    # pretrains: studies/ag-news-half/, a minute or two on one core
    fedfew study run results/adapters/adapters.yaml        # results/adapters/README.md

The token embeddings start from wordllama (MIT licence), made from the embeddings of large language models. They come with
its wheel: nothing is downloaded. A word gets the mean of its tokens' embeddings, cut to 64 dimensions. The transformer is then
trained on one half of AG News. The other half is written to a file for the clients. The vocabulary is that of the first half.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from examples.transformer import Block
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FOLDER = Path(__file__).parent.parent / "studies" / "ag-news-half"
TOKENS, WORDS, WIDTH, HEADS, BLOCKS, CLASSES = 24, 10_000, 64, 4, 2, 4
PAD, UNKNOWN = 0, 2  # of fedfew's own tokens


class Encoder(nn.Module):
    """Token ids [N, TOKENS] → logits: the mean over tokens that are no padding, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        padding = (ids == PAD).float()
        tokens = self.embed(ids) + self.place
        for block in self.blocks:
            tokens = block(tokens, padding[:, None, None])
        there = (1 - padding)[..., None]
        logits: Tensor = self.head(self.norm((tokens * there).sum(1) / there.sum(1)))
        return logits


def model() -> nn.Module:
    """The pretrained transformer with a new head, different for each of K models."""
    weights = FOLDER / "base.safetensors"
    if not weights.exists():
        raise ValueError(f"{weights} is not there: run python -m examples.ag_news_adapters first")
    module = Encoder()
    module.load_state_dict(load_file(weights))
    module.head = nn.Linear(WIDTH, CLASSES)
    return module


def embeddings(words: tuple[str, ...]) -> Tensor:
    """Of each word the mean of wordllama's embeddings of its tokens, in the WIDTH directions in which they differ most."""
    from tokenizers import Tokenizer

    found = find_spec("wordllama")
    if found is None or found.origin is None:
        raise ImportError("wordllama is needed for its embeddings: pip install wordllama")
    wheel = Path(found.origin).parent  # its own loader looks for the tokeniser elsewhere, and would download it
    tokenizer = Tokenizer.from_file(str(wheel / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    (pretrained,) = load_file(wheel / "weights" / "l2_supercat_256.safetensors").values()
    pieces = [encoding.ids for encoding in tokenizer.encode_batch(list(words), add_special_tokens=False)]
    table = torch.stack([pretrained[ids].float().mean(0) for ids in pieces])
    table -= table.mean(0)
    _, _, directions = torch.linalg.svd(table, full_matrices=False)
    cut = table @ directions[:WIDTH].T
    return cut / cut.std()


def main(epochs: int = 3) -> float:
    import fedfew

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = fedfew.data.load("ag-news", partition="iid", clients=1, vocabulary_from="all")  # all texts, at one client
    x = torch.cat([data.train.x, data.test.x])[:, :TOKENS].long()
    y = torch.cat([data.train.y, data.test.y])
    public, private = torch.from_numpy(np.random.default_rng(0).permutation(len(y))).chunk(2)
    counts = torch.bincount(x[public].flatten(), minlength=data.vocabulary)
    counts[:4] = counts.max() + 4 - torch.arange(4)  # special tokens come first
    kept = counts.argsort(descending=True, stable=True)[:WORDS]
    number = torch.full((len(counts),), UNKNOWN)
    number[kept] = torch.arange(WORDS)
    x = number[x]
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = np.array(data.class_names)
    np.savez_compressed(FOLDER / "clients.npz", x=x[private].numpy().astype(np.int16), y=y[private].numpy(), class_names=names)

    module = Encoder()
    with torch.no_grad():
        module.embed.weight[4:] = embeddings(tuple(data.preprocessing.words[i - 4] for i in kept[4:].tolist()))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for epoch in range(epochs):
        begin, total = time.perf_counter(), 0.0
        for rows in public[torch.randperm(len(public))].split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        print(f"epoch {epoch + 1}: loss {total / len(public):.3f}, {time.perf_counter() - begin:.0f} s", flush=True)
    save_file({name: t.contiguous() for name, t in module.state_dict().items()}, FOLDER / "base.safetensors")
    with torch.no_grad():
        right = torch.cat([module(x[rows]).argmax(1) == y[rows] for rows in private.split(512)])
    found = float(right.float().mean())
    print(f"{sum(p.numel() for p in module.parameters()):,} parameters; {100 * found:.1f} % correct on the clients' half")
    return found


if __name__ == "__main__":
    main()
