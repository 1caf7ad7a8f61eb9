"""Costs: by hand, against the bytes of real runs, and against what a real engine does, for every registered method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedfew import Federation, FedFew, train
from fedfew.engines import LocalTraining, Sequential, sequential
from fedfew.evaluation.costs import cost, cost_of, expected_reply
from fedfew.local import Local
from fedfew.methods import METHODS, FedAvg, make
from fedfew.methods.base import Fresh, Outcome, Reply
from fedfew.stack import named_leaves, stack, subtract, take, tree_map
from fedfew.training.initialisation import fresh_models
from fedfew.training.settings import Settings
from tests.methods.tiers import tiered

COUNTS = [5, 7, 10, 3, 21]
BATCH = 5
BATCHES = [1, 2, 2, 1, 5]
LINEAR = 4 * (6 * 3 + 3)  # bytes of the linear model


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for n in COUNTS]
    return Federation.from_arrays(parts, parts, classes=3)


def test_fedfew_by_hand(federation):
    c = cost(FedFew(models=3), "linear", federation, local_epochs=2, batch_size=BATCH)
    assert c.model_bytes == LINEAR
    assert c.bytes_down == 3 * LINEAR
    assert c.bytes_up == 3 * LINEAR + 3 * 4  # and three losses
    assert c.steps == pytest.approx(3 * 2 * sum(BATCHES) / 5)
    assert (c.gradient_passes, c.forward_passes) == (6, 0)
    assert (c.server_models, c.client_models) == (3, 0)
    assert (c.inference_passes, c.selection_passes) == (1, 3)


def test_fedavg_and_local_by_hand(federation):
    c = cost("fedavg", "linear", federation, batch_size=BATCH)
    assert (c.bytes_down, c.bytes_up, c.server_models, c.client_models) == (LINEAR, LINEAR + 4, 1, 0)
    assert (c.steps, c.gradient_passes, c.inference_passes, c.selection_passes) == (sum(BATCHES) / 5, 1, 1, 0)
    c = cost("local", "linear", federation, batch_size=BATCH)
    assert (c.bytes_down, c.bytes_up, c.server_models, c.client_models) == (0, 0, 0, 1)
    assert (c.steps, c.gradient_passes, c.inference_passes, c.selection_passes) == (sum(BATCHES) / 5, 1, 1, 0)


def test_a_pass_more_for_the_loss_or_the_gradient_is_seen(federation):
    c = cost(FedFew(models=2, loss_at="received"), "linear", federation)
    assert (c.gradient_passes, c.forward_passes) == (2, 2)
    c = cost(FedFew(models=2, send="gradient"), "linear", federation)
    assert (c.gradient_passes, c.forward_passes) == (4, 0)


@dataclass(frozen=True)
class _Two(FedAvg):
    """Trains the received model and one of its own in one step, looks at their sum besides, and keeps a number."""

    name: ClassVar[str] = "two"

    def init(self, fresh, clients):
        own = {"v": tree_map(lambda t: t.expand(clients, *t.shape).clone(), fresh(0)), "number": torch.zeros(clients)}
        return stack([fresh(0)]), own

    def client(self, received, own, local):
        params = {"v": tree_map(lambda t: t[:, None], own["v"]), "w": received}
        trained, losses = local.train(params, _both)
        assert losses.shape == (len(local), 1, 2)
        reply = Reply(subtract(trained["w"], received), losses.mean(2), local.counts)
        return Outcome(reply, own | {"v": take_model(trained["v"])}, adapted=trained["w"])


def take_model(tree):
    return tree_map(lambda t: t[:, 0], tree)


def _both(loss, params, context):
    v, w = loss(params["v"]), loss(params["w"])
    with torch.no_grad():
        loss(tree_map(torch.add, params["v"], params["w"]))
    return v + w, torch.stack([v, w]).detach()


def test_losses_taken_within_one_step_are_seen(federation):
    c = cost(_Two(), "linear", federation, local_epochs=3, batch_size=BATCH)
    assert (c.gradient_passes, c.forward_passes) == (6, 3)
    assert c.steps == pytest.approx(3 * 2 * sum(BATCHES) / 5)  # one step moves both
    assert c.client_models == pytest.approx(1 + 4 / LINEAR)
    assert c.bytes_up == LINEAR + 4


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("method", tiered())
def test_bytes_are_those_of_a_real_run(method, participation, federation):
    c = cost(method, "mlp", federation, batch_size=BATCH)
    run = train(
        federation,
        "mlp",
        method,
        rounds=2,
        batch_size=BATCH,
        participation=participation,
        engine="sequential",
        device="cpu",
    )
    present = 5 if participation == 1 else 2
    assert run.history.bytes_down.tolist() == [c.bytes_down * present] * 2
    assert run.history.bytes_up.tolist() == [c.bytes_up * present] * 2


@pytest.mark.parametrize(("models", "left"), [(2, [3, 5, 7, 2, 17]), (1, COUNTS)])  # at most √n apart, and none with one model
def test_samples_kept_apart_are_not_trained_on_and_their_losses_are_sent(models, left, federation):
    method = FedFew(models=models)
    c = cost(method, "mlp", federation, batch_size=4, check_share=0.3)
    run = train(federation, "mlp", method, rounds=1, batch_size=4, check_share=0.3, engine="sequential", device="cpu")
    assert run.history.bytes_up.tolist() == [c.bytes_up * 5]
    assert c.steps == pytest.approx(models * sum(-(-n // 4) for n in left) / 5)
    assert (c.gradient_passes, c.forward_passes) == (models, 0)
    settings = Settings(method="fedfew", method_settings={"models": models}, model="mlp", batch_size=4, check_share=0.3)
    assert cost_of(settings, federation) == c
    assert cost_of(replace(settings, dp_noise=1.0), federation) == cost(method, "mlp", federation, batch_size=4)


class _Counted(nn.Module):
    """An MLP that counts the rows that go through it."""

    rows: ClassVar[dict[bool, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        self.rows[torch.is_grad_enabled()] = self.rows.get(torch.is_grad_enabled(), 0) + len(x)
        return self.head(self.body(x).relu())


@pytest.mark.parametrize("method", [*METHODS.values(), _Two])
def test_work_is_that_of_a_real_engine(method, federation, monkeypatch):
    steps = 0

    def step(self, lr, real=sequential.Descent.step):
        nonlocal steps
        steps += 1
        return real(self, lr)

    monkeypatch.setattr(sequential.Descent, "step", step)
    monkeypatch.setattr(_Counted, "rows", {})
    chosen = method()
    everyone = torch.arange(len(COUNTS))
    server, own = chosen.init(Fresh(lambda k: {n: t.detach().clone() for n, t in _Counted().state_dict().items()}), len(COUNTS))
    local = Local(
        Sequential(_Counted(), LocalTraining(lr=0.01, batch_size=BATCH, local_epochs=2), 0),
        federation.train,
        everyone,
        1,
        torch.tensor(COUNTS) / sum(COUNTS),
    )
    outcome = chosen.client(chosen.dispatch(server, everyone), own, local)
    real, rows = steps, dict(_Counted.rows)
    c = cost(chosen, _Counted, federation, local_epochs=2, batch_size=BATCH)
    at_once = {"apfl": 2, "two": 2, "fedsam": 2, "mofedsam": 2, "perfedavg": 4, "pfedme": 3}.get(
        method.name, 1
    )  # gradients that a step takes
    if method.name == "fedfomo":  # trains on some samples and compares models by the others: counted as if by all
        assert c.gradient_passes * sum(COUNTS) > rows[True] > c.gradient_passes * sum(COUNTS) / 2
        assert c.forward_passes * sum(COUNTS) > rows[False] > 0
        return
    assert c.steps * len(COUNTS) == pytest.approx(real * at_once)
    assert c.gradient_passes * sum(COUNTS) == rows.get(True, 0)
    assert c.forward_passes * sum(COUNTS) == rows.get(False, 0)
    assert real > 0
    assert c.client_models * c.model_bytes == pytest.approx(
        sum(t[0].numel() * t.element_size() for t in _tensors(outcome.own)), abs=1e-6
    )


def _tensors(tree):
    return [t for value in tree.values() for t in (_tensors(value) if isinstance(value, dict) else [value])]


@pytest.mark.parametrize("method", tiered())
def test_a_prediction_takes_one_model_and_a_choice_all_candidates(method, federation):
    c = cost(method, "mlp", federation)
    run = train(federation, "mlp", method, rounds=1, engine="sequential", device="cpu")
    here = torch.tensor([0])
    served = take(run.method.serve(run.method.dispatch(run.state.server, here), take(run.state.own, here)), 0)
    candidates = len(run._modules(served))
    mixed = run.method.mixture(take(run.state.own, here)) is not None
    assert c.inference_passes == (candidates if mixed else 1)
    assert c.selection_passes == (candidates if candidates > 1 and not mixed else 0)
    assert all(value >= 0 for value in vars(c).values())


@pytest.mark.parametrize(("method", "passes"), [(FedFew(models=3), 3), (FedFew(models=3, share="body"), 3), (FedAvg(), 1)])
def test_a_mixture_runs_all_models(method, passes, federation):
    c = cost(method, "mlp", federation, serve="mixture")
    run = train(federation, "mlp", method, rounds=1, serve="mixture", engine="sequential", device="cpu")
    served = run.model_of(0)
    assert c.inference_passes == passes == len(getattr(served, "models", [served]))  # also those that share a body
    assert c.selection_passes == (passes if passes > 1 else 0)  # their losses are compared to weigh them


def test_counting_leaves_the_samples_and_the_random_state_of_training_alone(federation):
    before = federation.fingerprint()
    a = train(federation, "linear", "fedavg", rounds=1, engine="sequential", device="cpu").history.served_loss
    cost("fedavg", "linear", federation)
    b = train(federation, "linear", "fedavg", rounds=1, engine="sequential", device="cpu").history.served_loss
    assert federation.fingerprint() == before
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("setting", "value"), [("local_epochs", 0), ("batch_size", 0)])
def test_bad_settings_are_named(setting, value, federation):
    with pytest.raises(ValueError, match=f"{setting} must be a whole number ≥ 1, not 0"):
        cost("fedavg", "linear", federation, **{setting: value})


def test_more_models_than_clients_are_refused_as_in_training(federation):
    with pytest.raises(ValueError, match="models must be at most the number of clients"):
        cost(FedFew(models=6), "linear", federation)


def test_mlp_stands_for_textcnn_where_samples_are_token_ids_as_in_training():
    rng = np.random.default_rng(0)
    parts = [(rng.integers(0, 30, (n, 12)), rng.integers(0, 3, n)) for n in COUNTS]
    texts = Federation.from_arrays(parts, parts, classes=3)
    run = train(texts, "mlp", "fedavg", rounds=1, engine="sequential", device="cpu")
    assert cost("fedavg", "mlp", texts).bytes_up * len(COUNTS) == run.history.bytes_up[0]


class Double(nn.Module):
    """In double precision whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 4), nn.Linear(4, 3)
        self.double()

    def forward(self, x):
        return self.out(self.hidden(x.double()).tanh())


@pytest.mark.parametrize("name", METHODS)
def test_a_reply_is_expected_as_precise_as_the_model_is(name, federation):
    """A network refuses replies of another type."""
    method = make(name)
    server, own = method.init(fresh_models(Double, 0, torch.device("cpu")), len(COUNTS))
    first = torch.tensor([0])
    engine = Sequential(Double(), LocalTraining(lr=0.1, batch_size=BATCH), seed=0)
    local = Local(engine, federation.train.take(first), first, 1, torch.ones(1))
    sent = method.client(method.dispatch(server, first), take(own, first), local).reply.update
    expected = expected_reply(method, Double(), server, own).update
    assert {path: (t.shape, t.dtype) for path, t in named_leaves(expected)} == {
        path: (t.shape, t.dtype) for path, t in named_leaves(sent)
    }
