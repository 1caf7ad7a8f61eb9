"""Models by name: sizes, outputs, and the shapes they accept."""

import pytest
import torch

from fedfew import models
from fedfew.models.split import head_names


def size(module):
    return sum(p.numel() for p in module.parameters())


CONVOLUTIONS = (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64


SIZES = {
    ("cnn", (3, 32, 32), 10): 878_538,
    ("cnn-small", (3, 32, 32), 10): 76 * 8 + (8 * 25 + 1) * 16 + (16 * 25 + 1) * 64 + 65 * 10,
    ("cnn-wide", (3, 32, 32), 10): 76 * 56 + (56 * 25 + 1) * 112 + (2800 + 1) * 896 + 897 * 10,
    ("lenet", (3, 32, 32), 10): 76 * 6 + (6 * 25 + 1) * 16 + 401 * 120 + 121 * 84 + 85 * 10,
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


@pytest.mark.parametrize("name", ["cnn", "resnet18", "resnet18-gn"])
def test_images_with_channels_last_are_refused(name):
    """resnet18 would take them for images of width 3 with 32 channels."""
    with pytest.raises(ValueError, match=rf"{name} is for images .* \[32, 32, 3\]: their channels seem to come last. Move them"):
        models.build(name, (32, 32, 3), 10)


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
