"""What is held out, and what is measured on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedfew
from fedfew.evaluation.choosing_k import held_out, held_out_of_training, observed, regret
from tests.helpers import federation, linear


def rows(samples: object, client: int) -> set[tuple[float, ...]]:
    x, _ = samples.of(client)  # type: ignore[attr-defined]
    return {tuple(row) for row in x.tolist()}


def test_a_share_of_each_clients_training_samples_is_held_out() -> None:
    whole = federation(sizes=(20, 40, 7, 31))
    cut = held_out(whole, 0.2)
    assert cut.test.count.tolist() == [4, 8, 1, 6]
    assert cut.train.count.tolist() == [16, 32, 6, 25]
    for i in range(4):
        assert rows(cut.train, i) | rows(cut.test, i) == rows(whole.train, i)
        assert not rows(cut.train, i) & rows(cut.test, i)
        assert not rows(whole.test, i) & (rows(cut.train, i) | rows(cut.test, i))


def test_labels_stay_with_their_samples() -> None:
    whole = federation()
    cut = held_out(whole, 0.3)
    label = {tuple(x): y for i in range(4) for x, y in zip(*(t.tolist() for t in whole.train.of(i)), strict=True)}
    for i in range(4):
        for part in (cut.train, cut.test):
            x, y = part.of(i)
            assert [label[tuple(row)] for row in x.tolist()] == y.tolist()


def test_the_seed_and_the_share_decide_what_is_held_out() -> None:
    whole = federation()
    assert rows(held_out(whole, 0.2).test, 1) == rows(held_out(whole, 0.2).test, 1)
    assert rows(held_out(whole, 0.2, seed=1).test, 1) != rows(held_out(whole, 0.2).test, 1)
    assert len(rows(held_out(whole, 0.5).test, 1)) == 20


def test_what_is_held_out_of_training_leaves_a_third_split_as_it_is() -> None:
    whole = fedfew.data.load("digits", clients=4, val_share=0.1)
    cut = held_out_of_training(whole, 0.2, 0)
    assert cut.val is whole.val
    assert (cut.train.count + cut.test.count).tolist() == whole.train.count.tolist()


def test_a_third_split_is_taken_as_it_is() -> None:
    whole = fedfew.data.load("digits", clients=4, val_share=0.1)
    cut = held_out(whole)
    assert cut.test is whole.val
    assert cut.train is whole.train
    assert cut.val is None


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_wrong_share(share: float) -> None:
    with pytest.raises(ValueError, match="hold_out must lie between 0 and 1"):
        held_out(federation(), share)


def test_test_labels_change_nothing() -> None:
    whole = federation()
    turned = replace(whole, test=replace(whole.test, y=(whole.test.y + 1) % 3))
    assert held_out(whole).fingerprint() == held_out(turned).fingerprint()


@pytest.mark.parametrize("settings", [{}, {"label_prior": "client"}, {"serve": "mixture"}, {"recipe": "strong"}])
def test_losses_are_those_of_the_model_served(settings: dict[str, str]) -> None:
    cut = held_out(federation())
    run = fedfew.train(cut, linear, fedfew.FedFew(models=2), rounds=3, lr=0.2, score_every=3, **settings)
    found = observed(run, cut)
    assert (found.models, found.seed, found.in_use) == (2, 0, len(set(run.choice.tolist())))
    for i in range(4):
        for losses, samples in ((found.validation, cut.test), (found.training, cut.train)):
            x, y = samples.of(i)
            with torch.no_grad():
                assert losses[i] == pytest.approx(float(F.cross_entropy(run.model_of(i)(x), y)), rel=1e-4)


def test_regret_is_every_clients_model_on_every_clients_samples() -> None:
    cut = held_out(federation())
    run = fedfew.train(cut, linear, "local", rounds=3, lr=0.2)
    found = regret(run, cut)
    x, y = cut.test.of(1)
    with torch.no_grad():
        others, own = (float(F.cross_entropy(run.model_of(j)(x), y)) for j in (3, 1))
    assert found.difference[1, 3] == pytest.approx(others - own, rel=1e-4)
    assert np.diagonal(found.difference) == pytest.approx(0.0)
    off = [found.difference[i, j] for i in range(4) for j in range(4) if i != j]
    assert found.mean == pytest.approx(np.mean(off))
    assert found.largest == pytest.approx(max(off))
    assert found.mean <= found.tenth_largest <= found.largest
    assert found.negative == pytest.approx(np.mean(np.array(off) < 0))


@pytest.mark.filterwarnings("error")
def test_infinite_losses_have_no_difference() -> None:
    samples = [(np.full((8, 3), 1e8, "f4"), np.arange(8, dtype="f4")) for _ in range(3)]
    cut = held_out(fedfew.Federation.from_arrays(samples, samples, task="regression"))
    run = fedfew.train(cut, "linear", "local", rounds=1, lr=1e-4, batch_size=8, device="cpu")
    assert np.isinf(run.history.last("served_loss")).all()
    found = regret(run, cut)
    assert np.isnan([found.mean, found.largest, found.tenth_largest]).all()


def test_with_label_priors_a_client_tries_others_models_with_its_own() -> None:
    cut = held_out(federation())
    run = fedfew.train(cut, linear, "local", rounds=3, lr=0.2, label_prior="client")
    priors = run.state.priors["log_prior"]
    x, y = cut.test.of(1)
    with torch.no_grad():
        others, own = (float(F.cross_entropy(run.model_of(j)(x) - priors[j] + priors[1], y)) for j in (3, 1))
    assert regret(run, cut).difference[1, 3] == pytest.approx(others - own, rel=1e-4)
    some = regret(run, cut, most=2)
    i, j = some.clients
    assert some.difference[0, 1] == pytest.approx(regret(run, cut).difference[i, j])


def test_of_many_clients_some_are_drawn() -> None:
    cut = held_out(federation())
    run = fedfew.train(cut, linear, "local", rounds=1)
    some, all_of_them = regret(run, cut, most=2), regret(run, cut)
    assert some.difference.shape == (2, 2)
    assert some.total == 4
    i, j = some.clients
    assert some.difference[0, 1] == pytest.approx(all_of_them.difference[i, j])


def test_one_client_differs_from_nobody() -> None:
    cut = held_out(federation(sizes=(20,)))
    found = regret(fedfew.train(cut, linear, "local", rounds=1), cut)
    assert (found.largest, found.mean, found.tenth_largest, found.negative) == (0, 0, 0, 0)
