"""The recipe: label priors, server optimisers, averages of server models, and mixtures, in the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfew
from fedfew.config import LocalTraining, TrainConfig
from fedfew.evaluation.metrics import evaluate
from fedfew.federation import Federation
from fedfew.local import mixture_weights
from fedfew.methods import METHODS, FedAvg, FedFew, LocalOnly
from fedfew.models.served import ServedModel
from fedfew.training.label_prior import estimated_log_prior, log_frequencies, with_label_prior
from fedfew.training.resolve import resolve
from fedfew.training.server_optimizer import ServerOptimizer, averaged
from tests.methods.small import (
    CLASSES,
    FEATURES,
    FULL_BATCH,
    assert_same,
    clients_of,
    differ,
    federation,
    gradient,
    initial,
    linear,
    mean_by_samples,
    mlp,
    normalised,
    tensors,
    theta,
    train,
)
from tests.methods.tiers import tiered

PRIOR = {"label_prior": "client"}
STRONG = {"label_prior": "client", "server_optimizer": "momentum", "server_average": 0.5, "serve": "mixture"}
ENGINES = ("sequential", "threaded", "stacked")


def skewed(seed: int = 0, noise: float = 1.0) -> Federation:
    """Clients that differ in how often labels occur, and in nothing else."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(CLASSES, FEATURES))
    train, test = [], []
    for client in range(5):
        p = draw.dirichlet([0.3] * CLASSES)
        for part, n in ((train, 15 + 7 * client), (test, 40)):
            y = draw.choice(CLASSES, n, p=p)
            part.append((centres[y] + noise * draw.normal(size=(n, FEATURES)), y))
    return Federation.from_arrays(train, test, classes=CLASSES)


# -- label prior ---------------------------------------------------------------------------------------------------------------


def test_log_frequencies_by_hand():
    found = log_frequencies(torch.tensor([0, 0, 2]), 4)  # counts 2, 0, 1, 0 and one more each: 3, 1, 2, 1 of 7
    torch.testing.assert_close(found.exp(), torch.tensor([3, 1, 2, 1], dtype=torch.float64) / 7)


def test_a_step_with_a_prior_by_hand():
    """Gradient of the mean cross-entropy of logits + log π: (softmax(x θᵀ + log π) − one-hot(y))ᵀ x / n."""
    data = skewed()
    start = theta(initial(linear))
    moved = []
    for x, y in clients_of(data):
        counts = np.bincount(y.numpy(), minlength=CLASSES) + 1.0
        prior = torch.from_numpy(np.log(counts / counts.sum()))
        current = start
        for _ in range(FULL_BATCH["local_epochs"]):
            inputs = torch.cat([x, torch.ones(len(x), 1)], 1).double()
            p = (inputs @ current.T + prior).softmax(1)
            current = current - FULL_BATCH["lr"] * (p - torch.eye(CLASSES, dtype=torch.float64)[y]).T @ inputs / len(y)
        moved.append(current)
    run = train(FedAvg(), data, **(FULL_BATCH | PRIOR | {"rounds": 1}))
    torch.testing.assert_close(theta(run.models[0].state_dict()), mean_by_samples(moved, data), rtol=1e-4, atol=1e-5)


def test_equal_label_frequencies_make_a_prior_without_effect():
    x = torch.randn(4, 6, FEATURES, generator=torch.Generator().manual_seed(0))
    y = torch.arange(6) % CLASSES
    data = Federation.from_arrays([(one, y) for one in x], [(one, y) for one in x], classes=CLASSES)
    assert_same(tensors(train(FedFew(models=2), data)), tensors(train(FedFew(models=2), data, **PRIOR)), 1e-5)


def test_strength_zero_is_no_prior_and_strength_matters():
    data = skewed()
    plain, zero = train(FedAvg(), data), train(FedAvg(), data, prior_strength=0.0, **PRIOR)
    assert_same(tensors(plain), tensors(zero))
    one = train(FedAvg(), data, **PRIOR)
    assert differ(tensors(plain), tensors(one))
    assert differ(tensors(one), tensors(train(FedAvg(), data, prior_strength=2.0, **PRIOR)))


@pytest.mark.parametrize("name", tiered())
def test_every_method_trains_alike_with_the_recipe_on_every_engine(name):
    data = skewed()
    runs = [train(METHODS[name](), data, engine=engine, **STRONG) for engine in ENGINES]
    for other in runs[1:]:
        assert_same(tensors(runs[0]), tensors(other), 2e-4)


@pytest.mark.slow
def test_gradients_know_of_the_prior_on_every_engine():
    data = skewed()
    runs = [train(FedFew(models=2, send="gradient", server_step=0.5), data, engine=engine, **PRIOR) for engine in ENGINES]
    for other in runs[1:]:
        assert_same(tensors(runs[0]), tensors(other), 2e-4)
    assert differ(tensors(runs[0]), tensors(train(FedFew(models=2, send="gradient", server_step=0.5), data)))


def test_one_body_with_heads_takes_a_prior():
    data = skewed()
    runs = [train(FedFew(models=2, share="body"), data, engine=engine, **PRIOR) for engine in ENGINES]
    for other in runs[1:]:
        assert_same(tensors(runs[0]), tensors(other), 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("batch_norm", ["average", "local", "batch"])
def test_every_policy_of_batch_norm_takes_the_recipe(batch_norm):
    changes = {"model": normalised, "batch_norm": batch_norm, "batch_size": 9, "participation": 1.0}
    runs = [train(FedFew(models=2), engine=engine, **(changes | STRONG)) for engine in ("sequential", "stacked")]
    assert_same(tensors(runs[0]), tensors(runs[1]), 2e-4)


def test_the_prior_of_unlabelled_inputs_is_found_by_em():
    """With likelihoods that tell the classes apart without doubt, EM counts them; with none it stays uniform."""
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    certain = torch.eye(3)[y] * 100
    torch.testing.assert_close(estimated_log_prior(certain, 3), log_frequencies(y, 3), rtol=1e-4, atol=1e-4)
    uniform = estimated_log_prior(torch.zeros(50, 3), 3)
    torch.testing.assert_close(uniform.exp(), torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.slow
def test_the_prior_helps_where_labels_are_all_that_differs():
    data = skewed(3, noise=3.0)
    settings = {"rounds": 40, "lr": 0.1, "participation": 1.0, "momentum": 0.0, "model": linear}
    plain, with_prior = (train(FedAvg(), data, **(settings | more)) for more in ({}, PRIOR))
    assert with_prior.history.served_accuracy[-1].mean() > plain.history.served_accuracy[-1].mean() + 0.02


# -- server optimisers -----------------------------------------------------------------------------------------------------------


def config(**changes: object) -> TrainConfig:
    return TrainConfig(**changes)


def moves(kind: str, updates: list[float], **changes: float) -> list[float]:
    """Positions of one parameter that begins at 0 and is offered these updates."""
    optimizer = ServerOptimizer(config(server_optimizer=kind, **changes), lambda path: path != "statistics")
    server, moments, found = {"a": torch.zeros(1, dtype=torch.float64)}, {}, []
    for update in updates:
        server, moments = optimizer.step(server, {"a": server["a"] + update}, moments)
        found.append(float(server["a"]))
    return found


def test_momentum_by_hand():
    # v: 1, then 0.5·1 + 2 = 2.5, then 0.5·2.5 − 1 = 0.25; steps of 2
    assert moves("momentum", [1.0, 2.0, -1.0], server_momentum=0.5, server_lr=2.0) == pytest.approx([2.0, 7.0, 7.5])


@pytest.mark.parametrize(
    ("kind", "second"),
    [
        ("adam", lambda v, d: 0.99 * v + 0.01 * d**2),
        ("yogi", lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2)),
        ("adagrad", lambda v, d: v + d**2),
    ],
)
def test_adaptive_optimisers_against_algorithm_2_of_reddi_et_al(kind, second):
    m, v, x, expected = 0.0, 1e-6, 0.0, []
    for d in (1.0, -0.5, 0.25):
        m, v = 0.8 * m + 0.2 * d, second(v, d)
        x += 0.1 * m / (np.sqrt(v) + 1e-3)
        expected.append(x)
    assert moves(kind, [1.0, -0.5, 0.25], server_momentum=0.8, server_lr=0.1) == pytest.approx(expected)


def test_no_momentum_and_step_one_is_no_optimiser():
    plain, same = train(FedFew()), train(FedFew(), server_optimizer="momentum", server_momentum=0.0)
    a, b = tensors(plain), {n: t for n, t in tensors(same).items() if not n.startswith("moments")}
    assert_same(a, b, 1e-6)


@pytest.mark.parametrize("setting", [{"server_lr": 0.5}, {"server_momentum": 0.5}, {"server_optimizer": "adam"}])
def test_every_setting_of_the_server_optimiser_matters(setting):
    base = {"server_optimizer": "momentum"}
    assert differ(tensors(train(FedAvg(), **base)), tensors(train(FedAvg(), **(base | setting))))


def test_running_statistics_are_taken_as_they_come():
    optimizer = ServerOptimizer(config(server_optimizer="momentum"), lambda path: path != "statistics")
    old = {"w": torch.zeros(1), "statistics": torch.ones(1), "count": torch.tensor([1])}
    new = {"w": torch.ones(1), "statistics": torch.full((1,), 0.2), "count": torch.tensor([2])}
    moments = {"first": {"w": torch.ones(1)}}
    moved, moments = optimizer.step(old, new, moments)
    assert (float(moved["w"]), float(moved["statistics"]), int(moved["count"])) == (pytest.approx(1.9), pytest.approx(0.2), 2)
    assert set(moments["first"]) == {"w"}


def test_what_is_no_model_is_left_to_the_method():
    optimizer = ServerOptimizer(config(server_optimizer="momentum"), lambda path: True, frozenset({"variate"}))
    old = {"model": {"w": torch.zeros(1)}, "variate": {"w": torch.zeros(1)}}
    new = {"model": {"w": torch.ones(1)}, "variate": {"w": torch.ones(1)}}
    moved, moments = optimizer.step(old, new, {"first": {"model": {"w": torch.ones(1)}}})
    assert (float(moved["model"]["w"]), float(moved["variate"]["w"])) == (pytest.approx(1.9), 1.0)
    assert set(moments["first"]) == {"model"}


def test_the_average_by_hand_is_what_is_served():
    average = averaged({}, {"a": torch.tensor([4.0]), "n": torch.tensor([1])}, 0.75)
    average = averaged(average, {"a": torch.tensor([8.0]), "n": torch.tensor([2])}, 0.75)
    assert (float(average["a"]), int(average["n"])) == (5.0, 2)
    assert averaged({}, {"a": torch.zeros(1)}, 0.0) == {}
    plain, run = train(FedAvg()), train(FedAvg(), server_average=0.5)
    assert_same({"w": plain.state.server["0.weight"]}, {"w": run.state.server["0.weight"]})  # training goes on as without
    assert not torch.equal(plain.models[0][0].weight, run.models[0][0].weight)
    scores = evaluate(run, federation())
    np.testing.assert_allclose(scores.accuracy, run.history.served_accuracy[-1], atol=1e-6)


# -- mixtures --------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 20), min_size=1, max_size=5), st.floats(0.01, 10))
@settings(deadline=None)
def test_mixture_weights_are_a_tempered_softmax_of_losses(losses, temperature):
    found = mixture_weights(torch.tensor([losses], dtype=torch.float64), temperature)[0].numpy()
    expected = np.exp(-(np.array(losses) - min(losses)) / temperature)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-9)


def test_a_loss_that_is_not_finite_weighs_nothing():
    losses = torch.tensor([[0.5, torch.nan], [torch.inf, 1.0], [torch.nan, torch.nan]])
    torch.testing.assert_close(mixture_weights(losses, 0.5), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))


def test_a_mixture_of_one_model_is_that_model():
    a, b = (train(FedFew(models=1), serve=serve) for serve in ("best", "mixture"))
    np.testing.assert_array_equal(a.history.served_accuracy, b.history.served_accuracy)
    np.testing.assert_allclose(a.history.served_loss, b.history.served_loss, rtol=1e-6)


def test_a_cold_mixture_is_the_best_model_and_the_temperature_matters():
    best, cold = train(FedFew()), train(FedFew(), serve="mixture", temperature=1e-6)
    np.testing.assert_allclose(best.history.served_loss, cold.history.served_loss, rtol=1e-5)
    np.testing.assert_array_equal(cold.history.single_accuracy, best.history.served_accuracy)
    warm = train(FedFew(), serve="mixture", temperature=1.0)
    assert not np.allclose(warm.history.served_loss, cold.history.served_loss)


@pytest.mark.parametrize("changes", [STRONG, {"serve": "mixture"}, PRIOR, {"server_average": 0.5}], ids=str)
def test_the_model_of_a_client_is_the_one_that_was_scored(changes, tmp_path):
    data = skewed()
    run = train(FedFew(), data, **changes)
    for i in range(len(data)):
        x, y = data.test.of(i)
        with torch.no_grad():
            logits = run.model_of(i)(x)
        assert float((logits.argmax(1) == y).float().mean()) == pytest.approx(float(run.history.served_accuracy[-1][i]))
        loss = torch.nn.functional.cross_entropy(logits, y)
        assert float(loss) == pytest.approx(float(run.history.served_loss[-1][i]), rel=1e-5)
    np.testing.assert_allclose(evaluate(run, data).loss, run.history.served_loss[-1], rtol=1e-5)
    run.save(tmp_path / "run")
    again = fedfew.load(tmp_path / "run", mlp)
    for i in range(len(data)):
        for a, b in zip(again.model_of(i).state_dict().values(), run.model_of(i).state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_a_served_model_by_hand():
    one, other = torch.nn.Linear(1, 2, bias=False), torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        one.weight.copy_(torch.tensor([[0.0], [1.0]]))
        other.weight.copy_(torch.tensor([[0.0], [-1.0]]))
    prior = torch.tensor([0.25, 0.75]).log()
    served = ServedModel([one, other], torch.tensor([0.9, 0.1]), prior)
    odds = [3 * np.e, 3 / np.e]  # of the second class, at x = 1
    p = 0.9 * odds[0] / (1 + odds[0]) + 0.1 * odds[1] / (1 + odds[1])
    assert float(served(torch.ones(1, 1)).exp()[0, 1].detach()) == pytest.approx(p, rel=1e-6)


# -- all of it -------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_resumed_run_with_the_recipe_is_the_same_to_the_last_bit(engine, tmp_path):
    data = skewed()
    whole = train(FedFew(), data, rounds=6, engine=engine, **STRONG)
    train(FedFew(), data, rounds=3, engine=engine, folder=tmp_path / "run", **STRONG)
    resumed = train(FedFew(), data, rounds=6, engine=engine, folder=tmp_path / "run", resume=True, **STRONG)
    assert_same(tensors(whole), tensors(resumed))
    assert_same(dict(resumed.state.moments["first"]), dict(whole.state.moments["first"]))


def test_chunks_do_not_matter_with_the_recipe():
    data = skewed()
    assert_same(tensors(train(FedFew(), data, **STRONG)), tensors(train(FedFew(), data, chunk=2, **STRONG)), 1e-5)


def test_settings_of_the_recipe_without_effect_are_one_line():
    events = []
    train(LocalOnly(), on_round=lambda progress: events.extend(progress.events), recipe="strong")
    idle = "server_optimizer, serve, smoothing_end, check_share, server_average"
    assert events == [f"recipe strong: {idle} have no effect with local"]


def test_settings_without_effect_are_reported():
    events = []
    train(LocalOnly(), on_round=lambda progress: events.extend(progress.events), **STRONG)
    assert any("server_optimizer is momentum, but local averages no updates" in event for event in events)
    assert any("serve is mixture, but local serves each client a single model" in event for event in events)


def test_values_that_disappoint_are_reported():
    found = TrainConfig(label_prior="client", prior_strength=0.0, server_optimizer="yogi").without_effect()
    assert found == [
        "label_prior is client, but prior_strength is 0: it has no effect",
        "server_lr is 1, as a rule far too large for yogi: try 0.01",
    ]
    assert TrainConfig(label_prior="client", server_optimizer="adam", server_lr=0.01).without_effect() == []


def test_server_clusters_of_a_single_client_take_the_recipe():
    alone = skewed().take(torch.tensor([0]))
    assert train(METHODS["cfl"](models=1), alone, rounds=1, participation=1.0, recipe="strong").round == 1


@pytest.mark.parametrize("method", ["ditto", "fedavg", "fedfew", "fedrep"])
def test_an_average_that_no_client_is_served_is_reported(method):
    events = []
    plain = train(METHODS[method]())
    averaged = train(METHODS[method](), on_round=lambda progress: events.extend(progress.events), server_average=0.9)
    without = "server_average is 0.9, but clients of ditto use models that they keep themselves: it has no effect"
    assert (without in events) == (method == "ditto")
    same = all(torch.equal(a, b) for a, b in zip(plain.model_of(0).parameters(), averaged.model_of(0).parameters(), strict=True))
    assert same == (method == "ditto")


def test_priors_go_into_all_splits():
    data = with_label_prior(skewed(), config(label_prior="client"))
    assert data.train.log_prior is data.test.log_prior
    assert data.train.log_prior.shape == (5, CLASSES)
    assert with_label_prior(skewed(), config()).train.log_prior is None
    assert replace(data.train).take(torch.tensor([3])).log_prior.shape == (1, CLASSES)


def test_gradient_helper_is_the_plain_one():
    """The reference above without a prior is the shared one."""
    x, y = skewed().train.of(0)
    start = theta(initial(linear))
    inputs = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    direct = ((inputs @ start.T).softmax(1) - torch.eye(CLASSES, dtype=torch.float64)[y]).T @ inputs / len(y)
    torch.testing.assert_close(gradient(start, x, y), direct)


def test_the_strong_recipe_is_its_settings():
    data = skewed()
    of_fedfew = {"smoothing_end": 0.25, "check_share": 0.05}
    by_name, spelled_out = (
        train(FedFew(), data, **more) for more in ({"recipe": "strong"}, STRONG | {"server_average": 0.9} | of_fedfew)
    )
    assert_same(tensors(by_name), tensors(spelled_out))
    assert train(FedFew(), data, recipe="strong", serve="best").settings["serve"] == "best"
    with pytest.raises(ValueError, match="recipe must be plain or strong, not 'weak'"):
        train(FedFew(), data, recipe="weak")
    given = resolve({"recipe": "strong", "dataset": "cifar10", "serve": "best"}, {})
    assert (given.label_prior, given.augment, given.serve) == ("client", "crop-flip", "best")
    assert resolve({"recipe": "strong"}, {}).augment == "none"  # digits are no colour images
    assert resolve({}, {}).label_prior == "none"


def test_a_new_client_chooses_and_trains_with_its_own_prior():
    data = skewed(3, noise=3.0)
    run = train(FedFew(models=2), data, **PRIOR)
    x, y = data.train.of(0)
    losses = []
    for model in run.models:
        with torch.no_grad():
            logits = model(x) + log_frequencies(y, CLASSES).float()
        losses.append(float(torch.nn.functional.cross_entropy(logits, y)))
    assert fedfew.select(run.models, x, y, label_prior="client") == int(np.argmin(losses))
    joined = fedfew.join(run.models, x, y, validation=0, label_prior="client")
    assert [one.loss for one in joined.fits] == pytest.approx(losses, rel=1e-5)
    assert joined.log_prior is not None
    torch.testing.assert_close(joined.log_prior, log_frequencies(y, CLASSES).float())
    plain, prior = (
        fedfew.join(run.models[:1], x, y, training=LocalTraining(0.3, 5, local_epochs=2), keep_adapted=True, label_prior=kind)
        for kind in ("none", "client")
    )
    assert not torch.equal(plain.without_prior[0].weight, prior.without_prior[0].weight)


def test_a_module_takes_any_label_frequencies(tmp_path):
    """For client 2 with its own smoothed frequencies it is what the client is served."""
    data = skewed(3)
    run = train(FedFew(models=2), data, serve="best", prior_strength=0.5, label_prior="client")
    x, y = data.train.of(2)
    counts = np.bincount(y.numpy(), minlength=CLASSES) + 1
    fedfew.export.write(run, tmp_path / "models")
    export = fedfew.export.read(tmp_path / "models", model=mlp)
    assert "export.with_prior(frequencies, model=0)" in (tmp_path / "models" / "README.md").read_text()
    chosen = int(run.choice[2])
    for source in (run, export):
        torch.testing.assert_close(source.with_prior(counts, model=chosen)(x), run.model_of(2)(x))
        logits = source.models[chosen](x) + 0.5 * torch.tensor([0.5, *[0.5 / (CLASSES - 1)] * (CLASSES - 1)]).log()
        torch.testing.assert_close(source.with_prior([0.5, *[0.5 / (CLASSES - 1)] * (CLASSES - 1)], chosen)(x), logits)


@pytest.mark.parametrize(
    ("frequencies", "model", "settings", "message"),
    [
        ([1.0] * CLASSES, None, {}, "model is missing: give the number of one of the 2 models, from 0"),
        ([1.0] * CLASSES, 2, {}, "model must be the number of one of the 2 models, from 0, not 2"),
        ([0.0] + [1.0] * (CLASSES - 1), 0, {}, f"frequencies must be {CLASSES} numbers above 0, one per class"),
        ([1.0], 0, {}, f"frequencies must be {CLASSES} numbers above 0"),
        ([1.0] * CLASSES, 0, {"label_prior": "none"}, "trained without label priors"),
    ],
)
def test_frequencies_that_do_not_fit_are_refused(frequencies, model, settings, message):
    run = train(FedFew(models=2), **({"rounds": 1, "label_prior": "client"} | settings))
    with pytest.raises(ValueError, match=message):
        run.with_prior(frequencies, model)
