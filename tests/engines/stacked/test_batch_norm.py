"""BatchNorm in the stack: against plain layers, and by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedfew import random_streams
from fedfew.engines import LocalTraining, Sequential, Stacked, Threaded, UnsupportedModuleError, evaluation
from fedfew.engines.stacked import batch_scores, engine, traced
from fedfew.engines.stacked.batch_norm import MaskedBatchNorm, make_masked, weighted_rows
from fedfew.models.batch_norm import without_statistics
from fedfew.stack import leaves, take, tree_map
from tests.engines.small import Normalised, assert_close, cumulative, images, replicas, trained

ENGINES = [Stacked, Threaded, Sequential]
DATA = images()


def test_by_hand():
    """1 and 3 count, 100 does not: mean 2, variance 1, unbiased 2."""
    layer = make_masked(nn.BatchNorm1d(1, eps=0.0))
    with weighted_rows(torch.tensor([0.5, 0.5, 0.0])):
        y = layer(torch.tensor([[1.0], [3.0], [100.0]]))
    assert y[:2].tolist() == [[-1.0], [1.0]]
    assert layer.running_mean.item() == pytest.approx(0.1 * 2)
    assert layer.running_var.item() == pytest.approx(0.9 * 1 + 0.1 * 2)
    assert layer.num_batches_tracked.item() == 1


LAYERS = {
    "1d": (lambda: nn.BatchNorm1d(4), (4,)),
    "1d, sequences": (lambda: nn.BatchNorm1d(4), (4, 5)),
    "2d": (lambda: nn.BatchNorm2d(4), (4, 3, 2)),
    "3d": (lambda: nn.BatchNorm3d(4), (4, 2, 3, 2)),
    "cumulative": (lambda: nn.BatchNorm2d(4, momentum=None), (4, 3, 2)),
    "not affine": (lambda: nn.BatchNorm2d(4, affine=False), (4, 3, 2)),
    "no statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (4, 3, 2)),
    "instances": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (4, 3, 2)),
    "instances, not affine": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), (4, 3)),
    "instances, no momentum": (lambda: nn.InstanceNorm1d(4, momentum=None, track_running_stats=True), (4, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_masked_is_plain_on_what_counts(name):
    """Output, gradients and statistics over three batches of another number of samples each, then in evaluation."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    plain = make().double()
    if plain.affine:
        nn.init.normal_(plain.weight), nn.init.normal_(plain.bias)
    masked = make_masked(make().double())
    assert type(masked) is not type(plain)
    masked.load_state_dict(plain.state_dict())
    for b in (6, 2, 5):
        x = torch.randn(6, *shape, dtype=torch.float64, requires_grad=True)
        alone = x.detach()[:b].clone().requires_grad_()
        with weighted_rows((torch.arange(6) < b) / b):
            y = masked(x)[:b]
        expected = plain(alone)
        torch.testing.assert_close(y, expected)
        (y**3).sum().backward()
        (expected**3).sum().backward()
        torch.testing.assert_close(x.grad[:b], alone.grad)
        assert not x.grad[b:].any()
    assert_close(dict(masked.state_dict()), dict(plain.state_dict()))
    assert_close(dict(masked.named_parameters()), dict(plain.named_parameters()))
    for (_, p), (_, q) in zip(masked.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    x = torch.randn(6, *shape, dtype=torch.float64)
    torch.testing.assert_close(masked.eval()(x), plain.eval()(x))


def test_sequential_training_is_plain_batch_norm():
    """A loop over nn.BatchNorm with torch.optim.SGD, as one would write it for one client."""
    _, params, losses = trained(Sequential, Normalised, DATA, epochs=2, momentum=0.5)
    start = replicas(Normalised)
    for i, k in ((0, 0), (2, 1)):
        module = Normalised().train()
        module.load_state_dict(tree_map(lambda t, i=i, k=k: t[i, k], start))
        sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        x, y = DATA.train.of(i)
        for epoch in range(2):
            order = random_streams.order(3, 2, DATA.ids, 2, epoch, DATA.train.count, DATA.train.longest)[i, k, : len(y)]
            total = 0.0
            for batch in order.split(5):
                loss = F.cross_entropy(module(x[batch]), y[batch])
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                total += loss.item() * len(batch) / len(y)
        assert losses[i, k].item() == pytest.approx(total)
        assert_close(tree_map(lambda t, i=i, k=k: t[i, k], params), dict(module.state_dict()), 1e-9)


@pytest.mark.parametrize("factory", [Normalised, cumulative, lambda: without_statistics(Normalised(drop=0.3))])
def test_engines_agree(factory):
    for cls in ENGINES[:-1]:
        assert_engines_agree(cls, factory)


def assert_engines_agree(cls, factory):
    (one, a, losses_a), (other, b, losses_b) = (trained(c, factory, DATA, epochs=2, momentum=0.5) for c in (cls, Sequential))
    assert_close(a, b)
    torch.testing.assert_close(losses_a, losses_b, rtol=1e-6, atol=1e-6)
    for score in ("loss", "score"):
        torch.testing.assert_close(getattr(one.score(a, DATA.test), score), getattr(other.score(a, DATA.test), score))
    (gradient_a, at_a), (gradient_b, at_b) = one.gradient(a, DATA.train), other.gradient(a, DATA.train)
    assert_close(gradient_a, gradient_b)
    torch.testing.assert_close(at_a, at_b, check_dtype=False, rtol=1e-6, atol=1e-6)


def test_statistics_count_every_batch_once():
    for cls in ENGINES:
        _, params, _ = trained(cls, Normalised, DATA, epochs=2)
        assert params["norm1d.num_batches_tracked"].tolist() == [[6, 6], [10, 10], [4, 4], [12, 12]]


def test_a_replay_gives_the_same_bits(monkeypatch):
    def weights():
        return leaves(trained(Stacked, lambda: Normalised(drop=0.2), DATA, epochs=3, momentum=0.9)[1])

    replayed = weights()
    monkeypatch.setattr(traced.Traced, "__call__", lambda self, name, function, *tensors: function(*tensors))
    for x, y in zip(replayed, weights(), strict=True):
        assert torch.equal(x, y)


def test_a_function_that_writes_is_recorded_without_a_trace():
    recorder = traced.Traced()
    counter, untouched = torch.zeros(3), torch.ones(3)

    def write(counter, x):
        doubled = x * 2
        before = torch.ops.aten.mul.Scalar(counter, 1)
        counter.add_(x)
        return doubled + before

    for call in range(6):
        assert torch.equal(recorder("write", write, counter, untouched), torch.full((3,), 2.0 + call))
        assert torch.equal(counter, torch.full((3,), call + 1.0))
    assert torch.equal(untouched, torch.ones(3))


@pytest.mark.parametrize("cls", ENGINES)
def test_without_statistics_clients_never_share_a_batch(cls):
    """What a client scores does not depend on who is beside it, even where all share the models."""
    engine = cls(without_statistics(Normalised()), LocalTraining(lr=0.1, batch_size=5), 0)
    shared = tree_map(lambda t: t[:1], replicas(lambda: without_statistics(Normalised())))
    together = engine.score(shared, DATA.test)
    for i in range(4):
        alone = engine.score(shared, DATA.test.take(torch.tensor([i])))
        torch.testing.assert_close(alone.loss[0], together.loss[i])
        x, y = DATA.test.of(i)
        module = without_statistics(Normalised()).eval()
        module.load_state_dict(take(take(shared, 0), 1))
        assert together.loss[i, 1].item() == pytest.approx(F.cross_entropy(module(x), y).item(), rel=1e-5)


def test_a_last_sample_joins_the_evaluation_batch_before(monkeypatch):
    """Batches of 4: of 9 samples 4 and 5, of 5 samples 5, of 8 samples 4 and 4, of 7 samples 4 and 3."""
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 4)
    monkeypatch.setattr(batch_scores, "EVALUATION_BATCH", 4)
    monkeypatch.setattr(engine, "EVALUATION_BATCH", 4)
    data = images((9, 5, 8, 7, 9, 4, 13))
    cuts = [[4, 5], [5], [4, 4], [4, 3], [4, 5], [4], [4, 4, 5]]
    factory = lambda: without_statistics(Normalised())  # noqa: E731
    params = replicas(factory, 7)
    engines = [cls(factory(), LocalTraining(lr=0.1, batch_size=5), 0) for cls in ENGINES]
    scores = [engine.score(params, data.train) for engine in engines]
    gradients = [engine.gradient(params, data.train) for engine in engines]
    assert_close(gradients[0][0], gradients[1][0])
    module = factory().eval()
    for i, cut in enumerate(cuts):
        module.load_state_dict(tree_map(lambda t, i=i: t[i, 1], params))
        x, y = data.train.of(i)
        logits = torch.cat([module(part) for part in x.split(cut)])
        loss, accuracy = F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()
        for score, (_, at_gradient) in zip(scores, gradients, strict=True):
            assert score.loss[i, 1].item() == pytest.approx(loss, rel=1e-5)
            assert at_gradient[i, 1].item() == pytest.approx(loss, rel=1e-5)
            assert score.score[i, 1].item() == pytest.approx(accuracy)


class Reshaping(nn.Module):
    """Normalises rows that are not samples."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(72, 3)

    def forward(self, x):
        return self.out(self.norm(x.reshape(-1, 6)).reshape(len(x), -1))


class Double(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner.double()

    def forward(self, x):
        return self.inner(x.double())


def test_what_the_stack_cannot_take():
    with pytest.raises(UnsupportedModuleError, match=r"60 rows of a batch of 5 samples.*engine='sequential'"):
        trained(Stacked, Reshaping, DATA)
    trained(Sequential, Reshaping, DATA)
    with pytest.raises(UnsupportedModuleError, match=r"SyncBatchNorm \(1\).*engine='sequential'"):
        Stacked(nn.Sequential(nn.Linear(2, 3), nn.SyncBatchNorm(3)), LocalTraining(lr=0.1, batch_size=5), 0)


def test_engines_agree_on_instance_norm():
    """Samples that only fill up a batch must not move its running statistics, which are used in evaluation."""

    def instances():
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(), nn.Linear(48, 3))

    for cls in ENGINES[:-1]:
        assert_engines_agree(cls, lambda: Double(instances()))


def test_names_stay():
    assert list(make_masked(Normalised()).state_dict()) == list(Normalised().state_dict())
    assert isinstance(make_masked(nn.BatchNorm1d(2)), MaskedBatchNorm)
