"""Simulated attacks: who attacks, what they send, and whose scores count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedfew
from fedfew.config import TrainConfig
from fedfew.methods import IFCA, FedAvg, FedFew
from fedfew.methods.attacks import FORGED_LOSS, NOISE, SIGN_FLIP, Attacked
from fedfew.stack import named_leaves
from fedfew.training.attack import hostile, with_attack
from tests.helpers import federation, linear
from tests.training.small import train

DATA = federation((9, 12, 7, 11, 10, 8))
ATTACKS = ("label-flip", "sign-flip", "forged-loss", "noise")


def state(run: fedfew.Run) -> torch.Tensor:
    return torch.cat([t.double().flatten() for _, t in named_leaves(run.state.server)])


def one_round(attack: str) -> tuple[torch.Tensor, fedfew.Run]:
    """FedAvg's new model, where client 2 attacks and has all the weight that counts."""
    run = train(Attacked(FedAvg(), attack, (0,)), data=federation((9,)), rounds=1)
    return state(run), run


def test_replies_are_falsified_as_documented():
    data = federation((9,))
    start = state(train(FedAvg(), data=data, rounds=1, lr=1e-30))
    honest = state(train(FedAvg(), data=data, rounds=1)) - start
    flipped, _ = one_round("sign-flip")
    torch.testing.assert_close(flipped - start, SIGN_FLIP * honest, rtol=1e-4, atol=1e-5)
    still, run = one_round("forged-loss")
    torch.testing.assert_close(still, start)
    assert run.history.losses[0, 0, 0] == FORGED_LOSS
    noisy = one_round("noise")[0] - start
    assert 0.5 * NOISE < noisy.norm() / honest.norm() < 2 * NOISE
    assert abs(torch.nn.functional.cosine_similarity(noisy, honest, dim=0)) < 0.6
    torch.testing.assert_close(one_round("noise")[0] - start, noisy)  # a function of seed, round and client


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("method", [FedFew(models=2), IFCA(models=2)], ids=["fedfew", "ifca"])
def test_an_attack_changes_the_run_and_attackers_have_no_scores(attack: str, method):
    run = train(method, data=DATA, attack=attack, attackers=2)
    clients = hostile(TrainConfig(attack=attack, attackers=2), DATA).tolist()  # type: ignore[arg-type]
    assert len(clients) == 2
    for name in ("served_accuracy", "adapted_accuracy", "served_loss"):
        assert np.flatnonzero(np.isnan(run.history[name]).all(0)).tolist() == clients
        assert np.isnan(run.history[name]).sum() == 2 * len(run.history)
    assert not torch.allclose(state(run), state(train(method, data=DATA)))
    fewer = train(method, data=DATA, attack=attack, attackers=1)
    assert not torch.allclose(state(run), state(fewer))


def test_flipped_labels_are_those_of_attackers_in_training_alone():
    method, attacked = with_attack(TrainConfig(attack="label-flip", attackers=1, seed=4), FedAvg(), DATA)
    assert isinstance(method, Attacked)
    (client,) = method.attackers
    for i in range(len(DATA)):
        before, after = DATA.train.of(i)[1], attacked.train.of(i)[1]
        assert torch.equal(after, 2 - before if i == client else before)
    assert torch.equal(DATA.test.y, attacked.test.y)


def test_labels_that_are_no_classes_are_not_flipped():
    numbers = replace(DATA, train=replace(DATA.train, y=DATA.train.y.float()))
    with pytest.raises(ValueError, match="attack is 'label-flip', which needs one class per sample"):
        with_attack(TrainConfig(attack="label-flip"), FedAvg(), numbers)


def test_the_seed_decides_who_attacks():
    found = {tuple(hostile(TrainConfig(attack="noise", attackers=2, seed=seed), DATA).tolist()) for seed in range(8)}
    assert len(found) > 2
    assert with_attack(TrainConfig(), FedAvg(), DATA) == (FedAvg(), DATA)
    with pytest.raises(ValueError, match=r"attackers must be less than the number of clients \(6\), not 6"):
        train(FedAvg(), data=DATA, attack="noise", attackers=6)


def test_an_attack_is_the_same_in_chunks_and_after_a_resume_and_progress_counts_honest_clients(tmp_path):
    options = {"data": DATA, "attack": "noise", "attackers": 2, "serve": "mixture"}
    served: list[float | None] = []
    whole = train(FedFew(models=2), on_round=lambda p: served.append(p.served), **options)
    assert served[-1] == pytest.approx(np.nanmean(whole.history.served_accuracy[-1]))
    assert np.isnan(whole.history.single_accuracy[-1]).sum() == 2
    train(FedFew(models=2), rounds=2, folder=tmp_path, chunk=2, engine="sequential", **options)
    resumed = train(FedFew(models=2), folder=tmp_path, resume=True, **options)
    torch.testing.assert_close(state(resumed), state(whole))
    lines: list[str] = []
    train(FedAvg(), model=linear, rounds=1, attackers=2, on_round=lambda p: lines.extend(p.events))
    assert "attackers is 2, but attack is none: it has no effect" in lines
