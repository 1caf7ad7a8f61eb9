"""What a method sees of a batch and of a client's data beside the loss: logits, labels, weights and features."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfew.engines import Engine, LocalTraining, Sequential
from fedfew.local import Local, Loss, with_features
from fedfew.stack import Tree, tree_map
from tests.engines.small import ENGINES
from tests.methods.small import federation

DATA = federation((13, 6, 7))  # in batches of 5: partial batches of 3, 1 and 2 samples
HEAD = "1"


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)).double()


class InDouble(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


def local(cls: type[Engine], **training: object) -> Local:
    torch.manual_seed(0)
    network = InDouble(nn.Linear(4, 3), nn.Linear(3, 3)).double()
    engine = cls(network, LocalTraining(**({"lr": 0.1, "batch_size": 5} | training)), seed=3)
    return Local(engine, DATA.train, DATA.ids, 1, torch.ones(3) / 3)


def models() -> Tree:
    return {name: t[None, None] for name, t in module().state_dict().items()}


def centred(loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
    """The loss of doubled logits, and the distance of each sample's features from those of its label: context["centres"]."""
    logits, features = with_features(loss, params, HEAD)
    labels, weight = loss.labels, loss.weight.to(features)
    if labels.ndim == 1:
        labels, weight = labels[:, None], weight[:, None]
    apart = (features[:, None] - context["centres"][labels]).square().sum(-1)  # a tensor
    return loss.of(2 * logits) + (weight * apart).sum(), loss(params)


def centred_by_hand(local: Local, centres: Tensor) -> list[nn.Module]:
    """Plain PyTorch, batch by batch."""
    keys = partial(local.engine.keys, DATA.ids, 1, 1, 0)
    passed = local.engine.pass_of(DATA.train, 0.1, keys, None)  # the engine's own batches
    found = []
    for i in range(3):
        net, (x, y) = module(), DATA.train.of(i)
        for rows in passed.order[i, 0, : len(y)].split(5):
            features = net[0](x[rows].double())
            value = F.cross_entropy(2 * net[1](features), y[rows])
            value = value + (features - centres[y[rows]]).square().sum(1).mean()
            net.zero_grad()
            value.backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
        found.append(net)
    return found


@pytest.mark.parametrize("cls", ENGINES)
def test_an_objective_may_use_logits_labels_weights_and_features(cls: type[Engine]) -> None:
    here = local(cls)
    centres = torch.arange(9.0, dtype=torch.float64).reshape(3, 3) / 9
    trained, _ = here.train(models(), centred, context={"centres": centres[None, None]}, epochs=1)
    for i, net in enumerate(centred_by_hand(here, centres)):
        for name, expected in net.state_dict().items():
            torch.testing.assert_close(trained[name][i, 0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("cls", [cls for cls in ENGINES if cls is not Sequential])
def test_with_mixup_both_labels_count(cls: type[Engine]) -> None:
    centres: Tree = {"centres": torch.arange(9.0, dtype=torch.float64).reshape(1, 1, 3, 3) / 9}
    expected, _ = local(Sequential, mixup=0.4).train(models(), centred, context=centres)
    found, _ = local(cls, mixup=0.4).train(models(), centred, context=centres)
    plain, _ = local(Sequential).train(models(), centred, context=centres)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6) or a, found, expected)
    assert (expected["0.weight"] - plain["0.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("cls", ENGINES)
def test_features_and_labels_of_all_samples(cls: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.engines.evaluation.EVALUATION_BATCH", 4)
    here = local(cls)
    shift = torch.tensor([0.0, 1.0, 2.0]).double()
    params = models() | {"0.bias": models()["0.bias"] + shift[:, None, None]}  # each client its own
    spread = tree_map(lambda t: t.expand(3, *t.shape[1:]), params)
    features, labels = here.features(spread, HEAD), here.labels
    assert features.shape == (3, 13, 3)
    assert labels.shape == (3, 13)
    for i in range(3):
        x, y = DATA.train.of(i)
        expected = module()[0](x.double()) + i
        torch.testing.assert_close(features[i, : len(y)], expected.detach())
        assert features[i, len(y) :].eq(0).all()
        assert labels[i].tolist() == y.tolist() + [-1] * (13 - len(y))
    counts = torch.stack([DATA.train.of(i)[1].bincount(minlength=3) for i in range(3)])
    assert torch.equal(here.class_counts(3), counts)


def product(loss: Loss, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
    value = loss(context | params)
    return value, value.detach()


@pytest.mark.parametrize("cls", ENGINES)
def test_one_objective_with_more_or_less_of_the_model_to_train(cls: type[Engine]) -> None:
    """All names and shapes are the same: only which of them are fixed differs."""
    here, model = local(cls), models()
    body: Tree = {name: t for name, t in model.items() if name.startswith("0.")}
    head: Tree = {name: t for name, t in model.items() if name.startswith("1.")}
    part, _ = here.train(body, product, context=head)
    whole, _ = here.train(body | head, product)
    assert part.keys() == body.keys()
    assert (whole["1.weight"] - model["1.weight"]).abs().max() > 1e-3
