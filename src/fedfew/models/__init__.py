"""Models by name, built for the shape of a federation's samples.

Imports util alone, and may import federation, stack and random_streams. Methods, engines and all above import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from fedfew.models.cnn import cnn, cnn_small, cnn_wide, lenet
from fedfew.models.mlp import linear, mlp
from fedfew.models.own import OwnModel
from fedfew.models.resnet import resnet18, resnet18_gn
from fedfew.models.textcnn import PAD, textcnn, textcnn_published
from fedfew.util.spelling import unknown

ON_TOKENS: dict[str, Callable[..., nn.Module]] = {"textcnn": textcnn, "textcnn-published": textcnn_published}
MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "cnn-small": cnn_small,
    "cnn-wide": cnn_wide,
    "lenet": lenet,
    "resnet18": resnet18,
    "resnet18-gn": resnet18_gn,
    **ON_TOKENS,
}


ModelFactory = Callable[[], nn.Module]


def factory(
    model: str | ModelFactory | nn.Module,
    shape: Sequence[int],
    classes: int,
    vocabulary: int | None = None,
    padding: int | None = None,
) -> ModelFactory:
    """What makes the model for samples of this shape: of a name, :func:`build`; of the user's own, see :class:`OwnModel`."""
    if not isinstance(model, str):
        return model if isinstance(model, OwnModel) else OwnModel(model)
    name = model
    return lambda: build(name, tuple(shape), classes, vocabulary, padding)


def for_tokens(model: str | ModelFactory | nn.Module) -> str | ModelFactory | nn.Module:
    """The model for samples that are token ids: mlp, the default, takes numbers, so it is textcnn."""
    return "textcnn" if model == "mlp" else model


def check_name(name: str) -> None:
    if name not in MODELS:
        raise unknown("model", name, MODELS)


def build(
    name: str, shape: tuple[int, ...], classes: int, vocabulary: int | None = None, padding: int | None = None
) -> nn.Module:
    """The model called ``name`` for samples of this shape.

    vocabulary: how many token ids there are; None: a model of texts takes the paper's 32,000. padding: the token id of padding,
    where a tokeniser was given; None: 0.
    """
    check_name(name)
    if name in ON_TOKENS and vocabulary is not None:
        return ON_TOKENS[name](shape, classes, vocabulary, PAD if padding is None else padding)
    return MODELS[name](shape, classes)
