"""What every engine promises: training, gradients and scores against plain formulas and against each other."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedfew import random_streams
from fedfew.engines import LocalTraining, Sequential, Stacked
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import leaves, squared_distance, tree_map
from tests.engines.small import ENGINES, FEDERATION, assert_same, mlp, replicas, run
from tests.helpers import federation, linear


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.5, 0.1)])
@pytest.mark.parametrize("cls", ENGINES)
def test_training_is_sgd_on_the_counted_batches(cls, momentum, decay):
    """Every replica against a gradient formula written out: softmax regression, no autograd."""
    trained, losses = run(cls, momentum=momentum, weight_decay=decay)
    params = replicas(linear)
    order = random_streams.order(3, 5, FEDERATION.ids, 2, 0, FEDERATION.train.count, FEDERATION.train.longest)
    for i in range(4):
        x, y = FEDERATION.train.of(i)
        for k in range(2):
            w, b = params["weight"][i, k].clone(), params["bias"][i, k].clone()
            velocity_w, velocity_b = torch.zeros_like(w), torch.zeros_like(b)
            total = 0.0
            for batch in order[i, k, : len(y)].split(8):
                p = (x[batch] @ w.T + b).softmax(1)
                total += -p[torch.arange(len(batch)), y[batch]].log().sum().item()
                residual = (p - F.one_hot(y[batch], 3)) / len(batch)
                velocity_w = momentum * velocity_w + residual.T @ x[batch] + decay * w
                velocity_b = momentum * velocity_b + residual.sum(0) + decay * b
                w, b = w - 0.2 * velocity_w, b - 0.2 * velocity_b
            assert torch.allclose(trained["weight"][i, k], w, atol=1e-5)
            assert torch.allclose(trained["bias"][i, k], b, atol=1e-5)
            assert losses[i, k].item() == pytest.approx(total / len(y), rel=1e-5)


def proximal(loss, params, context):
    value = loss(params)
    return value + 0.7 * squared_distance(params, context), value.detach()


def mixed(loss, params, context):
    """Two trees trained at once, one of them unused by the model."""
    value = loss(params["v"])
    return value + 0.1 * sum(t.square().sum() for t in leaves(params["v"])) + 0 * params["alpha"], value.detach()


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"batch_size": 1}, {"batch_size": 1000}])
@pytest.mark.parametrize("epochs", [1, 3])
def test_engines_agree(training, epochs):
    *others, oracle = (run(cls, mlp, epochs=epochs, **training) for cls in ENGINES)
    for one in others:
        assert_same(one[0], oracle[0])
        assert torch.allclose(one[1], oracle[1], atol=1e-5)


def test_engines_agree_on_other_objectives():
    context = replicas(mlp)
    *others, one = (run(cls, mlp, objective=proximal, context=context, epochs=2) for cls in ENGINES)
    plain, _ = run(Stacked, mlp, epochs=2)
    for other in others:
        assert_same(one[0], other[0])
    assert any(not torch.allclose(a, b, atol=1e-3) for a, b in zip(leaves(one[0]), leaves(plain), strict=True))


@pytest.mark.parametrize("cls", ENGINES)
def test_trees_of_any_shape_are_trained(cls):
    engine = cls(linear(), LocalTraining(lr=0.1, batch_size=8), 0)
    params = {"v": replicas(linear), "alpha": torch.full((4, 2), 0.5)}
    trained, _ = engine.train(LocalEpochs(params, FEDERATION.train, FEDERATION.ids, 0, mixed, {}, 1))
    assert torch.equal(trained["alpha"], params["alpha"])
    assert (trained["v"]["weight"] != params["v"]["weight"]).all()


@pytest.mark.parametrize("cls", ENGINES)
def test_a_parameter_that_takes_no_part_stays(cls):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(5, 3), nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.used(x)

    trained, _ = run(cls, Lazy, weight_decay=0.1)
    assert torch.equal(trained["unused"], torch.ones(4, 2, 2))


@pytest.mark.parametrize("cls", ENGINES)
def test_the_given_parameters_are_left_alone(cls):
    engine = cls(linear(), LocalTraining(lr=0.1, batch_size=8), 0)
    shared = tree_map(lambda t: t[:1, :1].expand(4, 2, *t.shape[2:]), replicas(linear))
    before = tree_map(torch.clone, shared)
    engine.train(LocalEpochs(shared, FEDERATION.train, FEDERATION.ids, 0, cross_entropy, {}, 1))
    assert_same(shared, before, 0)


@pytest.mark.parametrize("cls", ENGINES)
def test_gradient_and_scores_are_those_of_all_samples(cls):
    engine = cls(mlp(), LocalTraining(lr=0.1, batch_size=8), 0)
    params = replicas(mlp)
    gradient, loss = engine.gradient(params, FEDERATION.train)
    scores = engine.score(params, FEDERATION.train)
    module = mlp().eval()
    for i in range(4):
        x, y = FEDERATION.train.of(i)
        for k in range(2):
            module.load_state_dict(tree_map(lambda t, i=i, k=k: t[i, k], params))
            module.zero_grad()
            logits = module(x)
            value = F.cross_entropy(logits, y)
            value.backward()
            for name, parameter in module.named_parameters():
                assert torch.allclose(gradient[name][i, k], parameter.grad, atol=1e-6), name
            assert loss[i, k].item() == pytest.approx(value.item(), rel=1e-5)
            assert scores.loss[i, k].item() == pytest.approx(value.item(), rel=1e-5)
            assert scores.score[i, k].item() == pytest.approx((logits.argmax(1) == y).float().mean().item())


@pytest.mark.parametrize("cls", ENGINES)
def test_shared_models_score_as_copies_do(cls):
    engine = cls(linear(), LocalTraining(lr=0.1, batch_size=8), 0)
    shared = tree_map(lambda t: t[:1], replicas(linear))
    copies = tree_map(lambda t: t.expand(4, *t.shape[1:]), shared)
    one, other = engine.score(shared, FEDERATION.test), engine.score(copies, FEDERATION.test)
    assert torch.allclose(one.loss, other.loss, atol=1e-6)
    assert torch.equal(one.score, other.score)


@pytest.mark.parametrize("cls", ENGINES)
def test_many_samples_are_scored_in_batches(cls):
    """More than one evaluation batch, unequal clients."""
    data = federation(sizes=(700, 1100))
    engine = cls(linear(), LocalTraining(lr=0.1, batch_size=8), 0)
    params = replicas(linear, 2)
    losses = engine.losses(params, data.train)
    gradient, at_gradient = engine.gradient(params, data.train)
    x, y = data.train.of(1)
    w = params["weight"][1, 0].clone().requires_grad_()
    value = F.cross_entropy(x @ w.T + params["bias"][1, 0], y)
    value.backward()
    assert losses[1, 0].item() == pytest.approx(value.item(), rel=1e-5)
    assert torch.allclose(losses, at_gradient, atol=1e-5)
    assert torch.allclose(gradient["weight"][1, 0], w.grad, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_steps_are_what_a_constant_gradient_is_multiplied_by(momentum: float) -> None:
    """Clients with 7 and 12 samples in batches of 5, twice: 4 and 6 steps of heavy-ball SGD, added up one by one."""
    engine = Sequential(nn.Linear(1, 2), LocalTraining(lr=0.1, batch_size=5, momentum=momentum), 0)
    expected = []
    for number in (4, 6):
        velocity = moved = 0.0
        for _ in range(number):
            velocity = momentum * velocity + 1.0
            moved += velocity
        expected.append(moved)
    torch.testing.assert_close(engine.steps(torch.tensor([7, 12]), 2), torch.tensor(expected, dtype=torch.float64))


def test_steps_of_adam_are_counted_without_its_moments() -> None:
    engine = Sequential(nn.Linear(1, 2), LocalTraining(lr=0.1, batch_size=5, optimizer="adam"), 0)
    assert engine.steps(torch.tensor([7, 12]), 2).tolist() == [4.0, 6.0]


def test_the_memory_of_a_sample_is_what_autograd_keeps_of_it():
    module = nn.Sequential(nn.Linear(5, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))
    engine = Sequential(module, LocalTraining(lr=0.1, batch_size=8), 0)
    floats = 8 * 5 + 8 * 5 + 5 * 3 + 8 * 3 + 1  # inputs; what ReLU gives, once; weights; log-probabilities; the loss's count
    labels = 8 * 8
    assert engine.bytes_per_sample(FEDERATION.train) == (4 * floats + labels) / 8
