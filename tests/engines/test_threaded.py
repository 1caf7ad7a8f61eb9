"""Replicas side by side: the same whatever the number of cores, and nothing left changed behind."""

import copy
import threading
from concurrent.futures import Future
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew.engines import LocalTraining, Sequential, Threaded, evaluation
from fedfew.engines.threaded import ChannelsLastPool, _GradientLaidOut
from fedfew.local import LocalEpochs, cross_entropy
from fedfew.stack import leaves, tree_map
from tests.engines.small import assert_close, images, replicas
from tests.helpers import same_run

DATA = images(sizes=(13, 22, 7, 27, 31), shape=(3, 16, 16))


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 8, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.Dropout(0.3), nn.Linear(64, 3)
    )


@pytest.fixture
def cores():
    """Set the number of threads that torch uses, until the test is over."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def train(objective=cross_entropy):
    engine = Threaded(conv(), LocalTraining(lr=0.1, batch_size=5, momentum=0.5), seed=3)
    return engine.train(LocalEpochs(replicas(conv, len(DATA)), DATA.train, DATA.ids, 2, objective, {}, 2))


def test_results_do_not_depend_on_the_number_of_cores(cores):
    results = []
    for n in (1, 2, 3):
        cores(n)
        results.append(train())
        assert torch.get_num_threads() == n
    for other in results[1:]:
        assert torch.equal(other[1], results[0][1])
        assert all(torch.equal(a, b) for a, b in zip(leaves(other[0]), leaves(results[0][0]), strict=True))


def test_replicas_are_trained_in_as_many_threads_as_there_are_cores(cores):
    """Two clients meet within their objectives, which one after the other they could not."""
    cores(2)
    meeting = threading.Barrier(2, timeout=600)
    met = set()

    def objective(loss, params, context):
        if threading.get_ident() not in met:
            meeting.wait()
            met.add(threading.get_ident())
        assert torch.get_num_threads() == 1, "an operation has one core"
        return cross_entropy(loss, params, context)

    train(objective)
    assert len(met) == 2
    assert threading.get_ident() not in met


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_ends_the_work_that_has_not_begun(error, cores, monkeypatch):
    """The first of ten replicas fails. Others that have begun by then go on when the rest is cancelled."""
    cores(2)
    begun, asked, first, rest_cancelled = [], [], threading.Lock(), threading.Event()
    for_each_replica, cancel = Threaded._for_each_replica, Future.cancel

    def counted(engine, work, params, samples):
        def counting(worker, i, k):
            begun.append((i, k))
            return work(worker, i, k)

        return for_each_replica(engine, counting, params, samples)

    def noticed(future):
        cancelled = cancel(future)
        asked.append(future)
        if len(asked) == 10:
            rest_cancelled.set()
        return cancelled

    def objective(loss, params, context):
        if first.acquire(blocking=False):
            raise error
        assert rest_cancelled.wait(300)
        return cross_entropy(loss, params, context)

    monkeypatch.setattr(Threaded, "_for_each_replica", counted)
    monkeypatch.setattr(Future, "cancel", noticed)
    with pytest.raises(type(error)):
        train(objective)
    assert len(begun) <= 3, "the one that fails, one beside it, one in its place"
    assert torch.get_num_threads() == 2


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path):
    settings = {"batch_size": 5, "engine": "threaded", "device": "cpu"}
    whole = fedfew.train(DATA, conv, "fedfew", rounds=4, **settings)
    fedfew.train(DATA, conv, "fedfew", rounds=2, folder=tmp_path, **settings)
    same_run(whole, fedfew.train(DATA, conv, "fedfew", rounds=4, folder=tmp_path, resume=True, **settings))


def test_gradients_of_pooling_are_pytorchs_own_laid_out_like_the_images():
    """Also within the gradient of another function, as in an objective that looks around before it moves."""
    layouts = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            layouts.append(g.is_contiguous(memory_format=torch.channels_last))
            return g

    def loss(pool, x):
        return (pool(x).flatten(1) * weights).sum()

    pool, plain = ChannelsLastPool(2), nn.MaxPool2d(2)
    x = torch.randn(3, 4, 6, 7).contiguous(memory_format=torch.channels_last).requires_grad_()
    weights = torch.randn(3, 4 * 3 * 3)
    (expected,) = torch.autograd.grad(loss(plain, x), x)
    for given in (x, x.detach().contiguous().requires_grad_()):
        assert torch.equal(pool(given), plain(given))
        assert torch.equal(torch.autograd.grad(loss(pool, given), given)[0], expected)
        assert torch.equal(torch.func.grad(lambda at: loss(pool, at))(given), expected)
    seen = Seen.apply(x[:, :, ::2, ::2])  # what its gradient looks like before it gets any further
    laid_out = _GradientLaidOut.apply(seen, torch.channels_last)
    torch.autograd.grad((laid_out.flatten(1) ** 2).sum(), x)
    assert layouts == [True]
    assert pool(x[0]).shape == (4, 3, 3)  # an image by itself


def test_workers_pool_channels_last_unless_indices_are_asked_for():
    modules = nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2, return_indices=True))
    engine = Threaded(modules, LocalTraining(lr=0.1, batch_size=5), seed=3)
    assert [type(layer) for layer in engine._workers[0].module] == [ChannelsLastPool, nn.MaxPool2d]
    assert [type(layer) for layer in modules] == [nn.MaxPool2d, nn.MaxPool2d]


@pytest.mark.parametrize("fails", [False, True])
def test_the_users_model_stays_as_it_was(fails):
    """Layers are replaced in copies alone, also where training stops with an error."""

    def stop(progress):
        if fails:
            raise ValueError("no further")

    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(196, 3)
    )
    model.eval()
    types, state = [type(layer) for layer in model], {name: t.clone() for name, t in model.state_dict().items()}
    for given in (model, lambda: model):
        with pytest.raises(ValueError, match="no further") if fails else nullcontext():
            fedfew.train(DATA, given, rounds=1, engine="threaded", batch_size=5, lr=0.1, on_round=stop, device="cpu")
        assert [type(layer) for layer in model] == types
        assert model[1].inplace
        assert not any(layer.training for layer in model.modules())
        assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
        assert not any(p.grad is not None or not p.requires_grad for p in model.parameters())


def test_a_last_batch_of_one_image_is_trained_on(cores):
    """How a convolution lays out the result for one image depends on strides that are never used."""
    cores(1)  # with more threads PyTorch takes another algorithm for small convolutions

    def small():
        convolutions = [nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.MaxPool2d(2)]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32, 3))

    data = images(sizes=(6, 11), shape=(3, 8, 8))
    found = []
    for engine in (Threaded, Sequential):
        engine = engine(small(), LocalTraining(lr=0.1, batch_size=5), seed=3)
        found.append(engine.train(LocalEpochs(replicas(small, 2), data.train, data.ids, 2, cross_entropy, {}, 2)))
    torch.testing.assert_close(found[0][1], found[1][1])
    for a, b in zip(*(leaves(tree) for tree, _ in found), strict=True):
        torch.testing.assert_close(a, b)


class Around(nn.Module):
    """Two convolutions, and around what is between them a residual connection."""

    def __init__(self, first: nn.Module, between: nn.Module) -> None:
        super().__init__()
        self.first, self.into, self.between, self.out = first, nn.Conv2d(3, 4, 3), between, nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        x = self.into(self.first(x))
        return self.head(self.out(x + self.between(x)).flatten(1))


class Called(nn.Module):
    """A normalisation that a model calls as a function."""

    def __init__(self, norm, channels: int) -> None:
        super().__init__()
        self.norm, self.weight, self.bias = norm, nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        return self.norm(x, self.weight, self.bias)


def grouped(x, weight, bias):
    return F.group_norm(x, 3, weight, bias)


def grouped_by_torch(x, weight, bias):
    return torch.group_norm(x, 3, weight=weight, bias=bias)


def alone(x, weight, bias):
    return F.instance_norm(x, weight=weight, bias=bias)


NORMS = {
    "groups": (nn.GroupNorm(3, 3), nn.Identity()),
    "instances": (nn.Identity(), nn.InstanceNorm2d(4)),
    "groups, a function": (Called(grouped, 3), nn.Identity()),
    "groups, torch's function": (Called(grouped_by_torch, 3), nn.Identity()),
    "instances, a function": (nn.Identity(), Called(alone, 4)),
}


@pytest.mark.parametrize("layers", NORMS.values(), ids=NORMS)
def test_images_are_normalised_each_by_itself_as_in_a_plain_layout(layers):
    """Channels last, PyTorch's gradients end the process (groups, in a first layer) or are false (instances, of one image)."""

    def model():
        return Around(*copy.deepcopy(layers))

    data = images(sizes=(6, 11, 1), shape=(3, 8, 8))
    threaded, plain = (cls(model(), LocalTraining(lr=0.1, batch_size=5), seed=3) for cls in (Threaded, Sequential))
    params = replicas(model, 3)
    work = LocalEpochs(params, data.train, data.ids, 2, cross_entropy, {}, 2)
    assert_close(threaded.train(work)[0], plain.train(work)[0], 1e-4)
    assert_close(threaded.gradient(params, data.train)[0], plain.gradient(params, data.train)[0], 1e-4)


def test_models_are_scored_on_images_channels_last(monkeypatch):
    """In plain layout pooling alone takes longer than all else."""
    seen = []

    class Seeing(nn.Flatten):
        def forward(self, x):
            seen.append((len(x), x.is_contiguous(memory_format=torch.channels_last)))
            return super().forward(x)

    monkeypatch.setattr(evaluation, "IMAGES_ON_CPU", 20)

    def model():
        return nn.Sequential(nn.Conv2d(3, 8, 5), nn.MaxPool2d(2), Seeing(), nn.Linear(288, 3))

    engine = Threaded(model(), LocalTraining(lr=0.1, batch_size=5), seed=3)
    params, weights = replicas(model, len(DATA)), torch.full((len(DATA), 2), 0.5)
    shared = tree_map(lambda t: t[:1], params)
    scored = [engine.score(params, DATA.train).loss, engine.score(shared, DATA.train).loss]
    scored += [part.loss for each in (params, shared) for part in engine.score_mixture(each, DATA.train, weights)]
    assert all(channels_last for _, channels_last in seen)
    assert max(size for size, _ in seen) == 20
    plain = Sequential(model(), LocalTraining(lr=0.1, batch_size=5), seed=3)
    expected = [plain.score(params, DATA.train).loss, plain.score(shared, DATA.train).loss]
    expected += [part.loss for each in (params, shared) for part in plain.score_mixture(each, DATA.train, weights)]
    for a, b in zip(scored, expected, strict=True):
        torch.testing.assert_close(a, b)
