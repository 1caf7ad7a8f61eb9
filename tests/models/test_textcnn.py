"""TextCNN by hand, as published, and in the stacked engine."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedfew
from fedfew import models
from fedfew.engines import Sequential, Stacked, Threaded
from fedfew.models.textcnn import TextCNN
from tests.engines.small import assert_close, trained
from tests.helpers import difference


def tiny_textcnn():
    return TextCNN(3, vocabulary=30, embedding=6, filters=4, drop=0.5)


def texts(sizes=(13, 22, 7), length=9, vocabulary=30):
    rng = np.random.default_rng(0)
    parts = [[], []]
    for n in sizes:
        for part in parts:
            y = rng.integers(3, size=n)
            x = rng.integers(1, vocabulary, size=(n, length))
            x[np.arange(n), rng.integers(5, size=n)] = 10 + y  # a word that tells
            x[:, 7:] = 0  # padding
            part.append((x, y))
    return fedfew.Federation.from_arrays(*parts, classes=3)


def test_textcnn_by_hand():
    """Every filter's largest answer over the windows of a text, written out."""
    torch.manual_seed(0)
    module = tiny_textcnn().eval()
    tokens = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    words = module.embedding.weight[tokens]
    features = []
    for width, convolution in zip((3, 4, 5), module.convolutions, strict=True):
        windows = [words[i : i + width] for i in range(len(tokens) - width + 1)]
        answers = torch.stack([torch.einsum("we,few->f", w, convolution.weight) + convolution.bias for w in windows])
        features.append(answers.amax(0).clamp_min(0))
    torch.testing.assert_close(module(tokens[None])[0], module.fc(torch.cat(features)))


def test_published_textcnn_gives_log_probabilities_and_the_same_loss():
    torch.manual_seed(0)
    plain = models.build("textcnn", (9,), 3, vocabulary=30).eval()
    published = models.build("textcnn-published", (9,), 3, vocabulary=30).eval()
    published.load_state_dict(plain.state_dict())
    tokens, labels = torch.randint(30, (8, 9)), torch.randint(3, (8,))
    torch.testing.assert_close(published(tokens).exp().sum(1), torch.ones(8))
    assert not torch.allclose(plain(tokens).exp().sum(1), torch.ones(8))
    losses = [F.cross_entropy(module(tokens), labels) for module in (plain, published)]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("engine", [Stacked, Threaded])
def test_embeddings_and_dropout_of_recorded_steps(engine):
    (_, a, losses_a), (_, b, losses_b) = (trained(cls, tiny_textcnn, texts(), epochs=3) for cls in (engine, Sequential))
    assert_close(a, b, 1e-5)
    torch.testing.assert_close(losses_a, losses_b, rtol=1e-4, atol=1e-5)
    assert not a["embedding.weight"][:, :, 0].any()  # padding stays where it is
    _, still, _ = trained(Sequential, lambda: TextCNN(3, 30, 6, 4, drop=0.0), texts(), epochs=3)
    assert not torch.allclose(still["fc.weight"], b["fc.weight"], atol=1e-3)


def test_the_vocabulary_is_the_federations(tmp_path):
    from dataclasses import replace

    data = replace(texts((9, 8)), vocabulary=30)
    settings = {"rounds": 1, "batch_size": 5, "device": "cpu"}
    runs = [fedfew.train(data, "textcnn", "fedavg", engine=engine, **settings) for engine in ("stacked", "sequential")]
    assert difference(*runs) < 1e-5
    assert runs[0].models[0].embedding.weight.shape == (30, 512)
    runs[0].save(tmp_path)
    again = fedfew.load(tmp_path).models[0]
    assert torch.equal(again.embedding.weight, runs[0].models[0].embedding.weight)
