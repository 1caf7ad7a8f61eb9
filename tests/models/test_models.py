"""Models by name: sizes, outputs, and training in both engines."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew import models
from fedfew.engines import Sequential, Stacked
from fedfew.models.batch_norm import batch_norms, needs_two, state_names, uses_batch_statistics, without_statistics
from fedfew.models.split import head_names
from fedfew.models.textcnn import TextCNN
from tests.engines.small import assert_close, images, trained
from tests.helpers import difference


def size(module):
    return sum(p.numel() for p in module.parameters())


CONVOLUTIONS = (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64
SIZES = {
    ("cnn", (3, 32, 32), 10): 878_538,
    ("cnn", (1, 28, 28), 62): (25 + 1) * 32 + (32 * 25 + 1) * 64 + 1024 * 512 + 512 + 512 * 62 + 62,
    ("cnn", (3, 64, 64), 200): CONVOLUTIONS + 10816 * 512 + 512 + 512 * 200 + 200,
    ("textcnn", (200,), 4): 32_000 * 512 + (3 + 4 + 5) * 512 * 100 + 300 + 300 * 4 + 4,
    ("textcnn-published", (200,), 4): 16_999_904,
    ("resnet18", (3, 64, 64), 8): 11_180_616,
    ("resnet18-gn", (3, 64, 64), 8): 11_180_616,
    ("mlp", (1, 8, 8), 10): 64 * 64 + 64 + 64 * 10 + 10,
    ("linear", (1, 8, 8), 10): 64 * 10 + 10,
}


@pytest.mark.parametrize("name", models.MODELS)
def test_number_of_parameters(name):
    cases = [case for case in SIZES if case[0] == name]
    assert cases
    for _, shape, classes in cases:
        assert size(models.build(name, shape, classes)) == SIZES[name, shape, classes]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn", (1, 16, 20)),
        ("mlp", (7,)),
        ("linear", (2, 3)),
        ("textcnn", (5,)),
        ("textcnn-published", (9,)),
        ("resnet18-gn", (1, 8, 9)),
    ],
)
def test_logits_for_every_shape(name, shape):
    x = torch.randint(50, (3, *shape)) if "text" in name else torch.randn(3, *shape)
    logits = models.build(name, shape, 6, vocabulary=50).eval()(x)
    assert logits.shape == (3, 6)
    assert logits.std(1).min() > 0


@pytest.mark.parametrize("name", models.MODELS)
def test_the_head_is_the_last_linear_layer(name):
    _, shape, classes = next(case for case in SIZES if case[0] == name)
    if name == "linear":
        return
    state = models.build(name, shape, classes, vocabulary=50).state_dict()
    assert [len(state[n]) for n in head_names(state)] == [classes, classes]


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"cnn needs images.*\[3, 8, 8\]"):
        models.build("cnn", (3, 8, 8), 10)
    with pytest.raises(ValueError, match=r"textcnn needs sequences of at least 5.*\[3, 32, 32\]"):
        models.build("textcnn", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"resnet18-gn needs images.*\[7\]"):
        models.build("resnet18-gn", (7,), 10)
    with pytest.raises(ValueError, match="resnet18"):
        models.build("resnet", (3, 32, 32), 10)
    with pytest.raises(TypeError, match=r"textcnn needs token ids.*float32"):
        models.build("textcnn", (9,), 3, vocabulary=20)(torch.zeros(2, 9))


# -- TextCNN ---------------------------------------------------------------------------------------------------------------------


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


def test_embeddings_and_dropout_in_the_stack():
    (_, a, losses_a), (_, b, losses_b) = (trained(cls, tiny_textcnn, texts(), epochs=3) for cls in (Stacked, Sequential))
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


# -- ResNet-18 -------------------------------------------------------------------------------------------------------------------


def test_resnet18_layers():
    """Two layers a block, eight blocks, the stem and the last layer: 18; three shortcuts change their width."""
    module = models.build("resnet18", (3, 64, 64), 8)
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    assert len([c for c in convolutions if c.kernel_size != (1, 1)]) + 1 == 18
    assert len(batch_norms(module)) == len(convolutions) == 20
    assert (convolutions[0].kernel_size, convolutions[0].stride) == ((7, 7), (2, 2))
    assert module.blocks(module.stem(torch.randn(2, 3, 64, 64))).shape == (2, 512, 2, 2)
    assert not batch_norms(models.build("resnet18-gn", (3, 64, 64), 8))


@pytest.mark.slow
def test_resnet18_trains_alike_in_both_engines():
    data = images((8, 5), shape=(1, 32, 32), test=2)
    settings = {"rounds": 1, "batch_size": 8, "lr": 0.001, "device": "cpu"}
    runs = [fedfew.train(data, "resnet18", "fedavg", engine=engine, **settings) for engine in ("stacked", "sequential")]
    assert difference(*runs) < 1e-4
    assert runs[0].state.server["stem.1.num_batches_tracked"].tolist() == [1]


# -- BatchNorm layers ------------------------------------------------------------------------------------------------------------


def test_what_is_known_of_batch_norm():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    assert state_names(module) == tuple(
        f"1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    )
    assert needs_two(module, torch.randn(1, 1, 3, 3))
    assert not needs_two(nn.Sequential(*module[:3]), torch.randn(1, 1, 3, 4))
    assert module[1].num_batches_tracked == 0  # asked of a copy
    with pytest.raises(RuntimeError):  # another error is not taken for an answer
        needs_two(module, torch.randn(1, 5, 3, 3))
    assert not uses_batch_statistics(module)
    assert uses_batch_statistics(without_statistics(module))
    assert state_names(module) == ("1.weight", "1.bias")


def test_pooling_before_relu_changes_nothing():
    """The paper's order, ReLU then pooling: the same output and the same gradients to the last bit."""
    ours = models.build("cnn", (3, 32, 32), 10)
    order = [0, 2, 1, 3, 5, 4, 6, 7, 8, 9]
    paper = nn.Sequential(*(ours[i] for i in order))
    assert [type(layer).__name__ for layer in paper[:3]] == ["Conv2d", "ReLU", "MaxPool2d"]
    x, y = torch.randn(7, 3, 32, 32), torch.arange(7)
    found = []
    for module in (ours, paper):
        module.zero_grad()
        logits = module(x)
        nn.functional.cross_entropy(logits, y).backward()
        found.append((logits, *(p.grad.clone() for p in ours.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
