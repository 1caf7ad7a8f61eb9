"""The clients' training recipe: optimisers, clipping, smoothing, class weights and mixup against PyTorch, on every engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedfew import random_streams
from fedfew.config import LocalTraining
from fedfew.engines import mixup
from fedfew.engines.loss import client_terms, stacked_cross_entropy, with_client_terms
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import leaves, tree_map
from fedfew.training.class_weights import with_class_weights
from fedfew.training.label_prior import with_label_prior
from tests.engines.small import ENGINES, FEDERATION, Normalised, assert_close, images, mlp, replicas
from tests.engines.stacked.test_captured import CapturedStack, proximal
from tests.helpers import linear

ALL = [*ENGINES, CapturedStack]
SETTINGS = {
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "clip": {"clip_gradient": 0.1},
    "clip momentum": {"clip_gradient": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "cosine": {"schedule": "cosine", "rounds": 9},
    "cosine momentum": {"schedule": "cosine", "rounds": 9, "momentum": 0.9},
    "cosine adamw": {"schedule": "cosine", "rounds": 9, "optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "smoothing": {"label_smoothing": 0.2},
    "weights": {"class_weights": "balanced"},
    "weights smoothing": {"class_weights": "balanced", "label_smoothing": 0.2},
    "mixup": {"mixup": 0.4},
    "all": {
        "optimizer": "adamw",
        "lr": 0.01,
        "weight_decay": 0.1,
        "schedule": "cosine",
        "rounds": 9,
        "warmup_rounds": 1,
        "clip_gradient": 0.5,
        "label_smoothing": 0.1,
        "class_weights": "balanced",
        "mixup": 0.4,
        "label_prior": "client",
    },
}


def run(cls, factory, data, objective=cross_entropy, epochs=2, round=3, **training):
    settings = LocalTraining(**({"lr": 0.1, "batch_size": 5} | training))
    data = with_class_weights(with_label_prior(data, settings), settings)
    engine = cls(factory(), settings, 3)
    params = replicas(factory, len(data))
    context = {} if objective is cross_entropy else tree_map(lambda t: t + 0.1, params)
    return engine, *engine.train(LocalEpochs(params, data.train, data.ids, round, objective, context, epochs))


def double():
    return Normalised(drop=0.2)


def reference(data, factory, i, k, training, epochs, round=3):
    """One replica by PyTorch's own classes and functions."""
    module = factory()
    module.load_state_dict(tree_map(lambda t: t[i, k], replicas(factory, len(data))))
    optimizer = {
        "sgd": lambda p: torch.optim.SGD(
            p, training.lr_of(round), momentum=training.momentum, weight_decay=training.weight_decay
        ),
        "adam": lambda p: torch.optim.Adam(p, training.lr_of(round), weight_decay=training.weight_decay),
        "adamw": lambda p: torch.optim.AdamW(p, training.lr_of(round), weight_decay=training.weight_decay),
    }[training.optimizer](module.parameters())
    x, y = data.train.of(i)
    counts = torch.bincount(y, minlength=3).float()
    weight = None
    if training.class_weights == "balanced":
        weight = torch.where(counts > 0, len(y) / ((counts > 0).sum() * counts), 1.0)
    prior = torch.zeros(3)
    if training.label_prior == "client":
        prior = ((counts + 1) / (counts + 1).sum()).log()
    criterion = nn.CrossEntropyLoss(weight, label_smoothing=training.label_smoothing)
    for epoch in range(epochs):
        order = random_streams.order(3, round, data.ids, 2, epoch, data.train.count, data.train.longest)[i, k, : len(y)]
        key = random_streams.count(random_streams.MIXUP, 3, round, epoch, int(data.ids[i]), k)
        total = 0.0
        for step, batch in enumerate(order.split(training.batch_size)):
            at, labels, share = x[batch], y[batch], 1.0
            if training.mixup:
                share = mixup.beta_quantile(random_streams.uniform(key, torch.tensor(step)), training.mixup)
                at = share * at + (1 - share) * torch.cat([at[1:], at[:1]])
            logits = module(at) + prior
            loss = share * criterion(logits, labels) + (1 - share) * criterion(logits, torch.cat([labels[1:], labels[:1]]))
            optimizer.zero_grad()
            loss.backward()
            if training.clip_gradient:
                nn.utils.clip_grad_norm_(module.parameters(), training.clip_gradient)
            optimizer.step()
            total += loss.item() * len(batch) / len(y)
    return module.state_dict(), total


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("cls", ALL)
def test_a_replica_is_trained_as_by_pytorch(cls, name):
    _, trained, losses = run(cls, linear, FEDERATION, **SETTINGS[name])
    training = LocalTraining(**({"lr": 0.1, "batch_size": 5} | SETTINGS[name]))
    for i, k in ((0, 0), (2, 1), (3, 0)):
        state, loss = reference(FEDERATION, linear, i, k, training, epochs=2)
        for path, t in state.items():
            torch.testing.assert_close(trained[path][i, k], t, rtol=1e-4, atol=1e-5)
        assert losses[i, k].item() == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_changes_what_is_trained(name):
    _, plain, _ = run(ENGINES[0], linear, FEDERATION, lr=SETTINGS[name].get("lr", 0.1))
    _, changed, _ = run(ENGINES[0], linear, FEDERATION, **SETTINGS[name])
    assert not torch.allclose(plain["weight"], changed["weight"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_engines_agree_with_batch_norm_dropout_and_a_methods_own_objective(name):
    """In double precision, on images; several epochs, so that replicas have taken unequal numbers of steps."""
    runs = [run(cls, double, images((9, 13)), proximal, **SETTINGS[name]) for cls in ALL]
    for _, trained, losses in runs[:-1]:
        assert_close(trained, runs[-1][1], 2e-6)
        torch.testing.assert_close(losses, runs[-1][2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"momentum": 0.9}, {"optimizer": "adam"}], ids=str)
def test_a_schedule_records_and_captures_nothing_anew(changes):
    data, module = images(), double()
    engine = CapturedStack(module, LocalTraining(0.1, 5, schedule="cosine", rounds=9, **changes), 3)
    params = replicas(double, len(data))

    def recordings(rounds):
        for number in rounds:
            engine.train(LocalEpochs(params, data.train, data.ids, number, cross_entropy, {}, 1))
        of = engine.differentiation
        return engine.captures, len(of._gradients_of._recordings) + len(of._descent_of._recordings)

    few = recordings(range(1, 4))
    assert recordings(range(4, 9)) == few
    assert min(few) > 0


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_stacks_loss_is_pytorchs_and_leaves_out_what_fills_a_batch(smoothing, weighted):
    torch.manual_seed(0)
    logits, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2, 0])
    weight = torch.tensor([0.25] * 4 + [0.0] * 2)
    classes = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64) if weighted else None
    found = stacked_cross_entropy(logits, y, weight, classes, smoothing)
    torch.testing.assert_close(found, F.cross_entropy(logits[:4], y[:4], classes, label_smoothing=smoothing))


@pytest.mark.parametrize("cls", ENGINES)
def test_gradients_and_scores_are_of_the_plain_loss(cls):
    """Evaluation knows nothing of smoothing, weights and mixup."""
    more = {"label_smoothing": 0.3, "mixup": 0.4, "class_weights": "balanced"}
    engines = [cls(linear(), LocalTraining(0.1, 8, **changes), 0) for changes in ({}, more)]
    samples = [FEDERATION.train, with_class_weights(FEDERATION, engines[1].training).train]
    params = replicas(linear)
    (plain, loss), (same, same_loss) = (e.gradient(params, s) for e, s in zip(engines, samples, strict=True))
    assert_close(plain, same, 0)
    assert torch.equal(loss, same_loss)
    assert torch.equal(*(e.score(params, s).loss for e, s in zip(engines, samples, strict=True)))


def test_a_context_carries_the_terms_of_clients():
    samples = replace(FEDERATION.train, class_weights=torch.arange(12.0).reshape(4, 3))
    carried = with_client_terms({"a": torch.zeros(4, 2, 5)}, samples, 2)
    own, terms = client_terms(tree_map(lambda t: t[2, 1], carried))
    assert [t.shape for t in leaves(own)] == [(5,)]
    assert terms.log_prior is None
    assert terms.class_weights.tolist() == [6.0, 7.0, 8.0]


def test_adam_keeps_its_moments_in_memory_estimates():
    sgd, adam = (ENGINES[0](mlp(), LocalTraining(0.1, 5, optimizer=name), 0) for name in ("sgd", "adam"))
    weights = sum(4 * t.numel() for t in mlp().state_dict().values())
    assert adam.bytes_per_replica(FEDERATION.train) - sgd.bytes_per_replica(FEDERATION.train) == 4 * weights


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", SETTINGS)
def test_cuda_graphs_train_by_the_recipe_round_after_round(name):
    """The third round replays graphs that were captured in the second, with another learning rate. Its losses tell of all steps
    before; parameters with gradients of rounding errors alone, of which Adam makes full steps, would differ."""
    settings = LocalTraining(**({"lr": 0.1, "batch_size": 5, "precision": "fp32"} | SETTINGS[name]))
    data = with_class_weights(with_label_prior(images(dtype=np.uint8), settings), settings).to("cuda")
    ends = []
    for cls in (ENGINES[0], ENGINES[-1]):
        engine = cls(small_cnn().cuda(), settings, 3)
        params = tree_map(lambda t: t.cuda(), replicas(small_cnn, len(data)))
        for number in (1, 2, 6):
            params, losses = engine.train(LocalEpochs(params, data.train, data.ids, number, proximal, params, 2))
        ends.append(losses)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def small_cnn():
    """Smooth: where two pixels are nearly equal, rounding decides which of them a maximum passes on."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3))
