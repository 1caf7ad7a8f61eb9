"""How a client that took no part in the training gets its model."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedfew
from fedfew.engines import LocalTraining
from fedfew.evaluation.selection import hold_out

LN2 = float(np.log(2))


def constant(*logits: float) -> nn.Module:
    """A model that gives every sample (of one feature) these logits."""
    module = nn.Linear(1, len(logits))
    with torch.no_grad():
        module.weight.zero_()
        module.bias.copy_(torch.tensor(logits))
    return module


def ones(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((n, 1), np.float32), np.ones(n, np.int64)


def test_the_model_with_the_least_loss_is_chosen_and_scored_on_what_was_held_out() -> None:
    x, y = ones(10)
    joined = fedfew.join([constant(0, 0), constant(0, 2), constant(2, 0)], x, y, validation=0.3)
    assert (joined.model, joined.chosen_by, joined.held_out) == (1, 7, 3)
    expected = [LN2, np.log1p(np.exp(-2)), np.log1p(np.exp(2))]
    assert [one.loss for one in joined.fits] == pytest.approx(expected)
    assert joined.before is not None
    assert joined.before.loss == pytest.approx(expected[1])
    assert joined.before.accuracy == 1.0
    assert (joined.after, joined.adapted, joined.worse) == (None, False, False)


def test_labels_may_be_one_hot_rows_as_in_training() -> None:
    x, y = ones(10)
    models, rows, training = [constant(0, 0), constant(0, 2)], np.eye(2)[y], LocalTraining(lr=0.5, batch_size=100)
    by_rows, by_numbers = (fedfew.join(models, x, labels, training=training, label_prior="client") for labels in (rows, y))
    assert (by_rows.model, by_rows.fits, by_rows.after) == (by_numbers.model, by_numbers.fits, by_numbers.after)
    assert by_rows.log_prior is not None
    assert by_rows.log_prior.tolist() == pytest.approx(np.log([1 / 10, 9 / 10]).tolist())  # 8 samples, and one more per class
    assert fedfew.select(models, x, rows, label_prior="client") == fedfew.select(models, x, y, label_prior="client")
    with pytest.raises(ValueError, match=r"the data has 10 samples but labels of shape \[10, 1\]"):
        fedfew.join(models, x, y[:, None])


def test_a_step_of_adapting_by_hand() -> None:
    """Loss ln 2 at zero logits; its gradient in the bias is softmax − one-hot = (½, −½), so a step of lr moves it by lr/2."""
    x, y = ones(10)
    joined = fedfew.join([constant(0, 0)], x, y, training=LocalTraining(lr=0.5, batch_size=100))
    assert joined.adapted
    assert joined.module.state_dict()["bias"].tolist() == pytest.approx([-0.25, 0.25])
    assert joined.before is not None
    assert joined.after is not None
    assert joined.before.loss == pytest.approx(LN2)
    assert joined.after.loss == pytest.approx(np.log1p(np.exp(-0.5)))


def test_the_epochs_are_those_of_plain_sgd() -> None:
    """Full batches, so that the order does not matter."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 1)).astype(np.float32), rng.integers(0, 2, 20)
    torch.manual_seed(0)
    start = nn.Linear(1, 2)
    told: list[int] = []
    joined = fedfew.join(
        [start], x, y, training=LocalTraining(0.3, 100, local_epochs=3), keep_adapted=True, on_epoch=lambda e, _: told.append(e)
    )
    at, _ = hold_out(y, 0.2)
    plain = nn.Linear(1, 2)
    plain.load_state_dict(start.state_dict())
    sgd = torch.optim.SGD(plain.parameters(), 0.3)
    for _ in range(3):
        sgd.zero_grad()
        F.cross_entropy(plain(torch.from_numpy(x[at])), torch.from_numpy(y[at])).backward()
        sgd.step()
    for name, value in plain.state_dict().items():
        assert torch.allclose(joined.module.state_dict()[name], value, atol=1e-6)
    assert told == [1, 2, 3]
    assert joined.module is not start  # the model given stays as it is


def test_adapting_knows_no_rounds_and_weighs_classes() -> None:
    """Of 8 samples that are trained on 2 are of class 0, which balanced weights count thrice: the gradient in the bias is then
    softmax − (½, ½, 0) for three logits of 0. A schedule and warm-up over rounds change nothing."""
    x, y = np.zeros((10, 1), np.float32), np.array([0, 1, 1, 1, 0, 1, 1, 1, 1, 1])
    at, _ = hold_out(y, 0.2)
    assert np.bincount(y[at]).tolist() == [2, 6]
    training = LocalTraining(0.3, 100, class_weights="balanced", schedule="cosine", warmup_rounds=5, rounds=9)
    joined = fedfew.join([constant(0, 0, 0)], x, y, training=training, keep_adapted=True)
    assert joined.module.state_dict()["bias"].tolist() == pytest.approx([0.05, 0.05, -0.1])


def disagreeing() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One group says 1, the other 0: what is learnt from one is wrong for the other."""
    y = np.array([1] * 6 + [0] * 6)
    return np.zeros((12, 1), np.float32), y, y


def test_a_model_that_adapting_made_worse_is_not_used_unless_asked() -> None:
    x, y, groups = disagreeing()
    start, training = constant(0, 0), LocalTraining(lr=0.5, batch_size=100)
    joined = fedfew.join([start], x, y, groups=groups, validation=0.5, training=training)
    assert joined.worse
    assert not joined.adapted
    assert joined.module is start
    kept = fedfew.join([start], x, y, groups=groups, validation=0.5, training=training, keep_adapted=True)
    assert kept.worse
    assert kept.adapted
    assert abs(kept.module.state_dict()["bias"]).tolist() == pytest.approx([0.25, 0.25])


def test_adapting_that_diverges_is_worse_and_never_kept() -> None:
    x, y = ones(10)
    x = x + 1
    far = LocalTraining(lr=3e38, batch_size=1, local_epochs=3, weight_decay=1.0)
    joined = fedfew.join([constant(0, 0)], x, y, training=far)
    assert joined.worse
    assert not joined.adapted
    with pytest.raises(ValueError, match="adapting diverged"):
        fedfew.join([constant(0, 0)], x, y, training=far, keep_adapted=True)


def test_a_client_without_the_first_class_is_adapted_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        joined = fedfew.join([constant(0, 0)], *ones(10), training=LocalTraining(lr=0.1, batch_size=5))
    assert joined.after is not None


def test_what_is_held_out_is_drawn_by_the_seed_and_each_class_in_proportion() -> None:
    y = np.array([0] * 30 + [1] * 10)
    at, out = hold_out(y, 0.2)
    assert sorted([*at, *out]) == list(range(40))
    assert np.bincount(y[out]).tolist() == [6, 2]
    again, other = hold_out(y, 0.2)[1], hold_out(y, 0.2, seed=1)[1]
    assert out.tolist() == again.tolist() != other.tolist()
    assert len(hold_out(y, 0.5)[1]) == 20
    assert [len(side) for side in hold_out(np.arange(2), 0.01)] == [1, 1]  # at least one a side


def test_samples_of_one_group_are_on_one_side() -> None:
    patients = np.array(["a", "b", "c", "d", "e"]).repeat(4)
    at, out = hold_out(np.arange(20) % 2, 0.2, patients)
    assert len(out) == 4
    assert not set(patients[at]) & set(patients[out])


def test_what_cannot_be_held_out_is_said() -> None:
    y = np.zeros(3, int)
    with pytest.raises(ValueError, match=r"validation must be a share in \[0, 1\), not 1"):
        hold_out(y, 1)
    with pytest.raises(ValueError, match="too few to hold any out"):
        hold_out(y[:1], 0.2)
    with pytest.raises(ValueError, match="all samples are of one group"):
        hold_out(y, 0.2, y)
    with pytest.raises(ValueError, match="groups must hold one number per sample"):
        hold_out(y, 0.2, y[:2])
    with pytest.raises(ValueError, match="models is empty"):
        fedfew.join([], *ones(3))
    for x, y in ((5, 4), (4, 5)):
        with pytest.raises(ValueError, match=f"x and y must hold the same number of samples, not {x} and {y}"):
            fedfew.join([constant(0, 0)], ones(x)[0], ones(y)[1])
    with pytest.raises(ValueError, match="validation is 0"):
        fedfew.join([constant(0, 0)], *ones(3), validation=0, training=LocalTraining(0.1, 2))
    joined = fedfew.join([constant(0, 0)], *ones(3), validation=0)
    assert (joined.chosen_by, joined.held_out, joined.before) == (3, 0, None)


def test_a_batch_of_one_is_refused_where_the_model_needs_two() -> None:
    net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    x, y = ones(10)
    with pytest.raises(ValueError, match=r"batch_size is 7 \(try 8\)"):  # 8 samples to train on: 7 and 1
        fedfew.join([net], x, y, training=LocalTraining(0.1, 7))
    assert fedfew.join([net], x, y, training=LocalTraining(0.1, 4)).after is not None


def test_bytes_become_what_they_were_in_training() -> None:
    module = nn.Linear(1, 2)
    x, y = np.full((10, 1), 255, np.uint8), np.ones(10, np.int64)
    plain = LocalTraining(lr=0.5, batch_size=100)
    ends = {
        pixels: fedfew.join([module], x, y, pixels=pixels, training=plain).after for pixels in ("symmetric", "unit")
    }  # 255 is 1 either way
    assert ends["symmetric"] == ends["unit"]
    dark = {
        pixels: fedfew.join([module], x * 0, y, pixels=pixels, training=plain).after for pixels in ("symmetric", "unit")
    }  # 0 is −1, or 0
    assert dark["symmetric"] != dark["unit"]


@pytest.mark.slow
def test_a_new_client_of_a_real_federation_gets_the_model_of_its_group() -> None:
    digits = fedfew.data.digits(20, seed=0)
    others = [i for i in range(20) if i != 7]
    run = fedfew.train(digits.take(others), "mlp", fedfew.FedFew(models=4), rounds=60, batch_size=10, lr=0.1, engine="stacked")
    x, y = (torch.cat(pair).numpy() for pair in zip(digits.train.of(7), digits.test.of(7), strict=True))
    joined = fedfew.join(run.models, x, y, training=LocalTraining(0.1, 10, local_epochs=3))
    same_turn = [run.choice[others.index(i)].item() for i in others if i % 4 == 3]
    assert joined.model in same_turn
    assert joined.before is not None
    assert joined.before.accuracy > 0.7
    assert joined.fits[joined.model].loss == min(one.loss for one in joined.fits)
    assert replace(joined, after=None).worse is False


def test_select():
    def constant(logits):
        module = nn.Linear(2, 3)
        with torch.no_grad():
            module.weight.zero_()
            module.bias.copy_(torch.tensor(logits))
        return module

    models = [constant([5.0, 0.0, 0.0]), constant([0.0, 5.0, 0.0])]
    assert fedfew.select(models, np.zeros((4, 2)), np.array([1, 1, 1, 0])) == 1
    assert fedfew.select(models, torch.zeros(4, 2), [0, 0, 1, 0]) == 0
    with pytest.raises(ValueError, match="models is empty"):
        fedfew.select([], np.zeros((1, 2)), [0])
    with pytest.raises(ValueError, match="same number"):
        fedfew.select(models, np.zeros((2, 2)), [0])


def test_without_labels_the_model_that_is_most_certain_of_the_inputs_is_chosen() -> None:
    x, _ = ones(10)
    models = [constant(0, 0), constant(0, 3), constant(0, 1)]
    assert fedfew.select(models, x) == 1
    assert fedfew.select(models, x, label_prior="client") == 1
    with pytest.raises(ValueError, match="none of the 1 has finite outputs for these samples"):
        fedfew.select([constant(float("nan"), 0)], x)
    with pytest.raises(ValueError, match="y is None, but training needs labels"):
        fedfew.join(models, x, training=LocalTraining(0.1, 5))


def test_a_client_without_labels_joins_with_a_prior_estimated_from_its_inputs() -> None:
    """Ten inputs whose second class is e³ times as likely: EM ends where π₁ = (10·r + 1)/12, r = e³π₁/(π₀ + e³π₁)."""
    x, _ = ones(10)
    models = [constant(0, 0), constant(0, 3), constant(0, 1)]
    joined = fedfew.join(models, x, label_prior="client", prior_strength=0.5)
    assert (joined.model, joined.fits, joined.chosen_by, joined.held_out, joined.before) == (1, [], 10, 0, None)
    assert joined.log_prior is not None
    zero, one = (2 * joined.log_prior).exp().tolist()
    assert zero + one == pytest.approx(1)
    assert one == pytest.approx((10 * np.e**3 * one / (zero + np.e**3 * one) + 1) / 12)
    with torch.no_grad():
        torch.testing.assert_close(joined.module(torch.tensor(x)), models[1](torch.tensor(x)) + joined.log_prior)
    assert fedfew.join(models, x).module is models[1]


def test_what_a_client_joins_with_is_the_module_that_was_scored() -> None:
    """Labels 0, 0, 0, 1 under equal logits: the prior makes class 0 the answer, which the module alone gives."""
    x, y = np.zeros((8, 1), np.float32), np.array([0, 0, 0, 1] * 2)
    joined = fedfew.join([constant(0, 0.1)], x, y, validation=0.5, label_prior="client")
    assert joined.before is not None
    with torch.no_grad():
        outputs = joined.module(torch.tensor(x))
    assert outputs.argmax(1).tolist() == [0] * 8
    assert joined.before.accuracy == 0.75
    trained = fedfew.join([constant(0, 0)], x, y, training=LocalTraining(0.1, 4), keep_adapted=True, label_prior="client")
    assert trained.log_prior is not None
    with torch.no_grad():
        torch.testing.assert_close(trained.module(torch.tensor(x)), trained.without_prior(torch.tensor(x)) + trained.log_prior)


def test_the_strength_of_the_prior_decides_which_model_fits() -> None:
    """Labels 0, 0, 0, 1: log frequencies are log(4/6) and log(2/6), a difference of log 2."""
    x, y = np.zeros((4, 1), np.float32), np.array([0, 0, 0, 1])
    models = [constant(float(np.log(2)), 0), constant(0, 0)]
    assert fedfew.select(models, x, y, label_prior="client", prior_strength=0.5) == 0
    assert fedfew.select(models, x, y, label_prior="client", prior_strength=2.0) == 1
    for strength, expected in ((0.5, 0), (2.0, 1)):
        joined = fedfew.join(models, x, y, validation=0, label_prior="client", prior_strength=strength)
        assert joined.model == expected
        assert joined.log_prior is not None
        assert float(joined.log_prior[0] - joined.log_prior[1]) == pytest.approx(strength * LN2)


@pytest.mark.parametrize("training", [None, LocalTraining(lr=0.3, batch_size=100)])
def test_the_module_that_is_returned_is_the_one_that_was_scored(training: LocalTraining | None) -> None:
    """Its outputs include the client's label prior: the mean loss on the samples held out is the score."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 1)).astype(np.float32), (np.arange(20) % 4 == 0).astype(np.int64)
    joined = fedfew.join([constant(0, 0.5)], x, y, training=training, keep_adapted=True, label_prior="client")
    _, out = hold_out(y, 0.2)
    with torch.no_grad():
        loss = float(F.cross_entropy(joined.module(torch.from_numpy(x[out])), torch.from_numpy(y[out])))
    score = joined.before if training is None else joined.after
    assert score is not None
    assert loss == pytest.approx(score.loss)
    assert not joined.module.training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_prior": "clients"}, "label_prior must be none or client, not 'clients'"),
        ({"prior_strength": -1.0}, "prior_strength must be a finite number ≥ 0, not -1.0"),
        ({"y": np.array([0, 5])}, "y runs from 0 to 5, but the models have 2 outputs: labels must lie in 0 … 1"),
        ({"y": np.array(["a", "b"])}, "y must be numbers of classes; run.for_new_client takes the names"),
        ({"y": np.array([0.5, 0.2]), "label_prior": "client"}, "label_prior is 'client', which is for classes"),
        ({"x": np.zeros((0, 1), np.float32)}, "x is empty: at least one sample is needed to choose by"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(changes: dict, message: str) -> None:
    given = {"x": np.zeros((2, 1), np.float32), "y": np.array([0, 1])} | changes
    for choose in (fedfew.select, fedfew.join):
        with pytest.raises(ValueError, match=re.escape(message)):
            choose([constant(0, 1)], **given)


def test_models_are_a_list() -> None:
    with pytest.raises(TypeError, match=r"models must be a list of modules, such as run\.models, not Linear"):
        fedfew.select(constant(0, 1), *ones(2))


def test_targets_of_another_number_than_the_outputs_are_refused() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(9, 3)).astype(np.float32), rng.normal(size=(9, 2)).astype(np.float32)) for _ in range(2)]
    run = fedfew.train(fedfew.Federation.from_arrays(clients, clients), "linear", "ifca", rounds=1)
    x, y = clients[0]
    for choose in (
        lambda y: fedfew.select(run.models, x, y),
        lambda y: fedfew.join(run.models, x, y),
        lambda y: run.for_new_client(x, y),
    ):
        choose(y)
        with pytest.raises(ValueError, match="y has 1 targets or labels per sample, but the models have 2 outputs"):
            choose(y[:, 0])
