"""Training language models: engines agree, mixtures are token-wise, and what has no meaning for them is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedfew
from fedfew.evaluation.metrics import evaluate
from fedfew.federation import Federation
from fedfew.tasks import IGNORED
from fedfew.training.run import Run
from tests.methods.small import assert_same, tensors

VOCABULARY, LENGTH = 7, 5


class Bigram(nn.Module):
    """What follows a token depends on that token alone."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 6), nn.Linear(6, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(tokens).tanh())
        return out


def texts() -> Federation:
    """Each client counts: in half of them up, in the others down. The last token of every third sequence is padding."""
    clients = []
    for client, samples in enumerate((9, 12, 7, 10)):
        start, step = np.arange(samples)[:, None], 1 if client % 2 else -1
        x = (start + step * np.arange(LENGTH)) % VOCABULARY
        y = x.copy()
        y[::3, -1] = IGNORED
        clients.append((x, y))
    return Federation.from_arrays(clients, clients, classes=VOCABULARY, task="language-modelling")


def train(**settings: Any) -> Run:
    chosen: dict[str, Any] = {"rounds": 2, "batch_size": 4, "lr": 0.5, "device": "cpu", "engine": "sequential"} | settings
    return fedfew.train(texts(), Bigram, fedfew.FedFew(models=2), **chosen)


@pytest.mark.parametrize("engine", ["stacked", "threaded"])
def test_engines_agree_and_so_do_mixtures(engine: str) -> None:
    assert_same(tensors(train(engine=engine, serve="mixture")), tensors(train(serve="mixture")), 2e-5)


def test_few_models_learn_both_directions_and_the_perplexity_is_that_of_the_served_model() -> None:
    run = train(rounds=40, engine="stacked")
    assert repr(texts()).startswith("<Federation 'arrays': 4 clients, 7 tokens (language-modelling)")
    assert run.perplexity().max() < 1.5  # one model for both directions has 2 at best
    x, y = texts().test.of(1)
    with torch.no_grad():
        logits = run.model_of(1)(x)[:, :-1].flatten(0, 1)
    mean = nn.functional.cross_entropy(logits, y[:, 1:].flatten(), ignore_index=IGNORED)
    assert run.perplexity()[1] == pytest.approx(mean.exp().item(), rel=1e-5)
    with pytest.raises(ValueError, match=r"these are language models: run.model_of\(client\) is the module"):
        run.predict(x.numpy(), 1)
    assert evaluate(run, texts()).perplexity.tolist() == run.perplexity().tolist()
    with pytest.raises(ValueError, match="a confusion matrix is of classes, but the task of this run is language-modelling"):
        run.confusion()


def test_a_new_client_of_token_ids_gives_its_targets() -> None:
    run = train(rounds=40, engine="stacked")
    x, y = texts().train.of(1)
    chosen = run.for_new_client(x.numpy(), y.numpy())
    torch.testing.assert_close(chosen.module(x), run.model_of(1)(x))
    with pytest.raises(ValueError, match="y must hold the token ids of x, −100 at padding"):
        run.for_new_client(x.numpy())


def test_a_larger_vocabulary_is_taken_and_a_smaller_one_refused() -> None:
    settings: dict[str, Any] = {"rounds": 1, "device": "cpu", "engine": "sequential"}
    assert fedfew.train(texts(), lambda: Bigram(9), "fedavg", **settings).round == 1
    with pytest.raises(
        ValueError, match=r"Bigram gives \[2, 5, 4\] for .* \[2, 5\].*\[2, 5, 7 or more\]. Give a causal language model"
    ):
        fedfew.train(texts(), lambda: Bigram(4), "fedavg", **settings)
    with pytest.raises(ValueError, match="perplexity is of language models, but the task of this run is classification"):
        fedfew.train(fedfew.data.load("digits", clients=3, sample=60), rounds=1, device="cpu", engine="sequential").perplexity()
