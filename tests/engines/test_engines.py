"""Both engines against plain formulas and against each other."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew import random_streams
from fedfew.engines import LocalTraining, Sequential, Stacked, Threaded, UnsupportedModuleError, choice, make
from fedfew.engines.dropout import CountedDropout, make_counted
from fedfew.engines.stacked import traced
from fedfew.engines.stacked.traced import recorded
from fedfew.federation import Federation
from fedfew.local import cross_entropy
from fedfew.stack import leaves, squared_distance, stack, tree_map
from tests.helpers import federation, linear

ENGINES = [Stacked, Threaded, Sequential]
FEDERATION = federation()


def replicas(factory, clients=4, models=2):
    torch.manual_seed(0)
    return stack([stack([dict(factory().state_dict()) for _ in range(models)]) for _ in range(clients)])


def run(cls, factory=linear, objective=cross_entropy, context=None, epochs=1, data=FEDERATION, **training):
    torch.manual_seed(0)
    engine = cls(factory(), LocalTraining(**({"lr": 0.2, "batch_size": 8} | training)), seed=3)
    params = replicas(factory, len(data))
    return engine.train(params, data.train, data.ids, 5, objective, context or {}, epochs)


def assert_same(a, b, tolerance=1e-5):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert torch.allclose(x, y, atol=tolerance, rtol=tolerance), (x - y).abs().max()


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


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Dropout(0.4), nn.Linear(7, 3))


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
    trained, _ = engine.train(params, FEDERATION.train, FEDERATION.ids, 0, mixed, {}, 1)
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
    engine.train(shared, FEDERATION.train, FEDERATION.ids, 0, cross_entropy, {}, 1)
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
            assert scores.accuracy[i, k].item() == pytest.approx((logits.argmax(1) == y).float().mean().item())


@pytest.mark.parametrize("cls", ENGINES)
def test_shared_models_score_as_copies_do(cls):
    engine = cls(linear(), LocalTraining(lr=0.1, batch_size=8), 0)
    shared = tree_map(lambda t: t[:1], replicas(linear))
    copies = tree_map(lambda t: t.expand(4, *t.shape[1:]), shared)
    one, other = engine.score(shared, FEDERATION.test), engine.score(copies, FEDERATION.test)
    assert torch.allclose(one.loss, other.loss, atol=1e-6)
    assert torch.equal(one.accuracy, other.accuracy)


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


def test_dropout_is_counted():
    module = make_counted(mlp())
    dropout = module[3]
    assert isinstance(dropout, CountedDropout)
    assert list(module.state_dict()) == list(mlp().state_dict())
    assert isinstance(make_counted(nn.Dropout(0.1)), CountedDropout)
    *others, one = (run(cls, mlp) for cls in ENGINES)
    for other in others:
        assert_same(one[0], other[0])


def test_dropout_drops_its_share_and_keeps_the_mean():
    from fedfew.engines.dropout import keyed

    x = torch.ones(200, 500)
    layer = CountedDropout(0.3, layer=1).train()
    with keyed(torch.tensor(5)):
        y = layer(x)
        again = layer(x)
    with keyed(torch.tensor(6)):
        other = layer(x)
    assert torch.equal(y, again)
    assert not torch.equal(y, other)
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(layer.eval()(x), x)


@pytest.mark.parametrize("p", [0.25, 0.8])
def test_units_are_dropped_one_by_one(p):
    """Four of them share a hash: each must drop its share, and none with its neighbours."""
    from fedfew.engines.dropout import keyed

    with keyed(torch.tensor(7)):
        y = CountedDropout(p, layer=2).train()(torch.ones(200_001))
    assert y.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-4)]
    dropped = (y[:200_000] == 0).double().reshape(-1, 4)
    assert dropped.mean(0).tolist() == pytest.approx([p] * 4, abs=0.01)
    together = (dropped.T @ dropped) / len(dropped)
    assert (together - torch.eye(4) * (p - p**2) - p**2).abs().max() < 0.01


@pytest.mark.parametrize("p", [0.999999, 1.0])
def test_nothing_is_left_where_nearly_all_is_dropped(p):
    from fedfew.engines.dropout import keyed

    with keyed(torch.tensor(5)):
        assert not CountedDropout(p, layer=1).train()(torch.ones(10)).any()


class Branching(nn.Module):
    """Looks at values to decide what to do: vmap cannot."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else -self.linear(x)


def test_a_module_that_vmap_cannot_take():
    with pytest.raises(UnsupportedModuleError, match=r"cannot take Branching.*engine='sequential'"):
        run(Stacked, Branching)
    run(Sequential, Branching)
    engine = make("auto", Branching(), LocalTraining(lr=0.1, batch_size=8), 0, FEDERATION.train, 2)
    assert engine.name in ("sequential", "threaded")


@pytest.mark.parametrize(
    ("stack", "threads", "fastest"), [(0.03, 0.04, Stacked), (0.05, 0.05, Sequential), (0.03, 0.02, Threaded)]
)
def test_auto_takes_the_fastest_once_for_each_kind_of_work(stack, threads, fastest, monkeypatch):
    """Seconds of four clients are given, so that the trial's length, not this machine, decides: 0.045 one after the other."""
    trials = []

    def seconds(engine, samples, models, clients, runs):
        trials.append((engine.name, clients))
        of_four = {"sequential": 0.045, "stacked": stack, "threaded": threads}[engine.name]
        return of_four if clients == 4 else 0.001  # alone a client is faster, which must not count

    monkeypatch.setattr(choice, "_seconds", seconds)
    monkeypatch.setattr(choice, "_fastest", {})

    def auto(models=3, batch_size=4, lr=0.1):
        return type(make("auto", linear(), LocalTraining(lr=lr, batch_size=batch_size), 0, FEDERATION.train, models))

    assert auto() is fastest
    assert trials == [("sequential", 1), ("sequential", 4), ("threaded", 4), ("stacked", 4)]
    assert auto(lr=0.2) is fastest
    assert len(trials) == 4, "the same work is not tried again"
    for other in ({"models": 2}, {"batch_size": 5}):
        assert auto(**other) is fastest
    assert len(trials) == 12


def test_a_trial_of_long_steps_is_kept_short(monkeypatch):
    trials = []

    def seconds(engine, samples, models, clients, runs):
        trials.append((engine.name, clients))
        return {"sequential": 9.0, "threaded": 17.0, "stacked": 19.0}[engine.name]

    monkeypatch.setattr(choice, "_seconds", seconds)
    monkeypatch.setattr(choice, "_fastest", {})
    engine = make("auto", linear(), LocalTraining(lr=0.1, batch_size=4), 0, FEDERATION.train, 3)
    assert engine.name == "threaded", "17 s against twice 9"
    assert trials == [("sequential", 1), ("threaded", 2), ("stacked", 2)]


def test_a_trial_takes_time():
    for cls in ENGINES:
        engine = cls(linear(), LocalTraining(lr=0.1, batch_size=4), 0)
        assert choice._seconds(engine, FEDERATION.train, models=2, clients=3, runs=1) > 0


def test_unknown_engine():
    with pytest.raises(ValueError, match="engine must be auto, stacked, threaded or sequential"):
        make("turbo", linear(), LocalTraining(lr=0.1, batch_size=4), 0, FEDERATION.train, 3)


def test_recordings_call_torch_directly_and_do_the_same():
    """An operation that torch has as a function, one that it has as a method, and one that only torch.ops has."""

    def work(x, y):
        z = torch.relu(x.view(4, 3)).sum(1, keepdim=True) * 2 + y
        return torch.ops.aten.threshold_backward.default(z, z, 0.5)

    x, y = torch.randn(3, 4), torch.randn(4, 1)
    recording = traced._called_directly(traced.recorded(work, (x, y)))
    called = {node.target for node in recording.graph.nodes if node.op == "call_function"}
    assert {torch.relu, torch.sum, torch.Tensor.view, torch.ops.aten.threshold_backward.default} <= called
    assert torch.equal(recording(x, y), work(x, y))


def test_recordings_are_bounded_and_reused(monkeypatch):
    monkeypatch.setattr(traced, "KEPT", 3)
    recorder = traced.Traced()
    calls = []

    def double(x):
        calls.append(len(x))
        return 2 * x

    def times(n, repeats):
        calls.clear()
        for _ in range(repeats):
            assert torch.equal(recorder("double", double, torch.ones(n)), torch.full((n,), 2.0))
        return len(calls)

    assert times(1, 10) == 1  # recorded, then replayed
    assert times(1, 5) == 0
    assert [times(n, 3) for n in (2, 3, 4)] == [1, 1, 1]
    assert times(4, 5) == 0
    assert times(1, 5) == 1  # dropped for a newer one, recorded again


def test_nothing_is_recorded_twice_where_all_clients_differ_in_size(monkeypatch):
    """150 numbers of clients in an epoch: kept all of them, or every step would be recorded anew, for ever."""
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 5, generator=draw), torch.randint(3, (n,), generator=draw)) for n in range(1, 151)]
    many = Federation.from_arrays(clients, clients[:1] * 150, classes=3)
    recordings = []
    monkeypatch.setattr(traced, "recorded", lambda *given: recordings.append(given) or recorded(*given))
    engine = Stacked(linear(), LocalTraining(lr=0.1, batch_size=1), 0)
    params = tree_map(lambda t: t.expand(150, 1, *t.shape), dict(engine.module.state_dict()))
    for round in range(2):
        engine.train(params, many.train, many.ids, round, cross_entropy, {}, 1)
        assert len(recordings) == 150


def conv():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))


@pytest.mark.parametrize(("factory", "data"), [(mlp, FEDERATION), (conv, fedfew.data.digits(clients=3))])
def test_a_replay_gives_the_same_bits(factory, data, monkeypatch):
    replayed, losses = run(Stacked, factory, epochs=2, momentum=0.9, data=data)
    monkeypatch.setattr(traced.Traced, "__call__", lambda self, name, function, *tensors: function(*tensors))
    as_written, same_losses = run(Stacked, factory, epochs=2, momentum=0.9, data=data)
    for x, y in zip(leaves(replayed), leaves(as_written), strict=True):
        assert torch.equal(x, y)
    assert torch.equal(losses, same_losses)


def test_memory_estimate_grows_with_the_model_and_the_batch():
    def estimate(hidden, batch):
        module = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        return Stacked(module, LocalTraining(lr=0.1, batch_size=batch), 0).bytes_per_replica(FEDERATION.train)

    assert estimate(100, 8) > 2 * estimate(10, 8)
    assert estimate(100, 32) > estimate(100, 8) > 5 * 4 * (5 * 100 + 100 + 300 + 3)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"sparse": True}, {"scale_grad_by_freq": True}])
def test_embeddings_that_the_stack_cannot_take(options):
    module = nn.Sequential(nn.Embedding(9, 4, **options), nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(UnsupportedModuleError, match=r"embedding \(0\) with max_norm.*engine='sequential'"):
        Stacked(module, LocalTraining(lr=0.1, batch_size=8), 0)


def test_padding_of_an_embedding_is_not_trained():
    """Tokens 0 to 3, of which 2 is padding: its vector takes part but stays."""
    x = torch.randint(4, (20, 5), generator=torch.Generator().manual_seed(0))
    data = fedfew.Federation.from_arrays([(x, x[:, 0] % 3)] * 2, [(x, x[:, 0] % 3)] * 2, classes=3)

    def embedded():
        module = nn.Sequential(nn.Embedding(4, 6, padding_idx=2), nn.Flatten(), nn.Linear(30, 3))
        nn.init.normal_(module[0].weight)
        return module

    *others, one = (run(cls, embedded, epochs=2, data=data) for cls in ENGINES)
    for other in others:
        assert_same(one[0], other[0])
    table, before = one[0]["0.weight"], replicas(embedded, 2)["0.weight"]
    assert torch.equal(table[:, :, 2], before[:, :, 2])
    assert (table[:, :, [0, 1, 3]] != before[:, :, [0, 1, 3]]).all()


@pytest.mark.parametrize("models", [1, 3])
def test_scores_and_gradients_are_the_same_however_few_clients_fit_in_memory(models, monkeypatch):
    engine = Stacked(mlp(), LocalTraining(lr=0.1, batch_size=8), 0)
    params = tree_map(lambda t: torch.randn(len(FEDERATION), models, *t.shape), dict(mlp().state_dict()))
    together = engine.score(params, FEDERATION.train), engine.gradient(params, FEDERATION.train)
    seen = []
    original = Stacked._score_together
    monkeypatch.setattr(Stacked, "_score_together", lambda self, p, s: seen.append(len(s.count)) or original(self, p, s))
    monkeypatch.setattr("fedfew.engines.memory.ON_A_CPU", 1)
    apart = engine.score(params, FEDERATION.train), engine.gradient(params, FEDERATION.train)
    assert seen == [1] * len(FEDERATION)
    for x, y in zip((together[0].loss, together[0].accuracy), (apart[0].loss, apart[0].accuracy), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
    for x, y in zip(leaves(together[1][0]), leaves(apart[1][0]), strict=True):
        assert torch.allclose(x, y, atol=1e-6)
