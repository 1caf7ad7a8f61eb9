"""Differential privacy on a network: secret noise and sampling, a fixed denominator, ε in the history."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.stack import named_leaves
from fedfew.training import privacy
from tests.flower.support import SETTINGS, fake_network, losing, server_loop, simulated

PRIVATE = {"dp_noise": 1.0, "dp_delta": 0.01, "refuse_ratio": 0.0}


def state(run) -> torch.Tensor:
    return torch.cat([t.double().flatten() for _, t in named_leaves(run.state.server)])


def test_noise_is_not_that_of_the_seed(tmp_path):
    runs = [server_loop(tmp_path / name, fake_network(tmp_path / name), rounds=1, **PRIVATE).run() for name in "ab"]
    assert not torch.allclose(*(state(run) for run in runs))
    expected = privacy.epsilon(DeploymentConfig(**(SETTINGS | PRIVATE)), 1)
    assert runs[0].history.epsilon.tolist() == pytest.approx([expected])
    assert privacy.guarantee(runs[0])["epsilon"] == pytest.approx(expected)  # which an export has on its card


@pytest.mark.parametrize("lost", [None, losing((2, 1))], ids=["all reply", "one reply lost"])
def test_without_noise_to_speak_of_it_is_the_simulator_s(lost, tmp_path, monkeypatch):
    """A lost reply counts as zero: the denominator is fixed."""
    tiny = {"dp_noise": 1e-9, "dp_clip": 1e3, "dp_delta": 0.01}
    run = server_loop(tmp_path, fake_network(tmp_path, change=lost), rounds=1, **(PRIVATE | tiny)).run()
    start = state(simulated(rounds=1, lr=1e-30))
    contributions = [state(simulated_alone(client, tiny)) - start for client in range(4) if lost is None or client != 2]
    torch.testing.assert_close(state(run) - start, torch.stack(contributions).sum(0) / 4, rtol=1e-3, atol=1e-5)


def simulated_alone(client: int, settings: dict):
    """The client twice: FedFew's K models need as many clients, and the mean of two equal ones is theirs."""
    import fedfew
    from tests.flower.support import FEDERATION, tiny

    training = {name: SETTINGS[name] for name in ("batch_size", "lr")}
    data = FEDERATION.take([client] * 3)
    return fedfew.train(data, tiny, "fedfew", rounds=1, engine="sequential", **training, **settings)


def test_a_round_in_which_nobody_is_drawn_adds_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(privacy, "secretly_drawn", lambda clients, share: torch.zeros(0, dtype=torch.int64))
    network = fake_network(tmp_path)
    run = server_loop(tmp_path, network, rounds=2, participation=0.5, **PRIVATE).run()
    assert run.round == 2
    assert "train" not in [kind for kind, _ in network.exchanges]
    assert "round 1: no client was drawn, the models move by noise alone" in run.state.events
    assert np.isnan(run.history.losses).all()
    moved = state(run) - state(simulated(rounds=1, lr=1e-30))
    assert float(moved.std()) == pytest.approx(2**0.5 / (0.5 * 4), rel=0.25)  # two rounds of noise 1, over q·M


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refuse_ratio": 100.0}, "refuse-ratio must be 0 where dp-noise is set, not 100"),
        ({"aggregation": "masked"}, "dp-noise must be 0 where aggregation is masked"),
        ({"method": "fedamp"}, "fedamp as it is set does more with updates"),
    ],
)
def test_what_the_guarantee_does_not_cover_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DeploymentConfig(**(SETTINGS | PRIVATE | changes))


def test_a_round_is_written_before_its_models_are_sent_to_be_scored(tmp_path):
    """A server killed while sites score them would otherwise repeat the round with other noise, which ε does not count."""
    written = []

    def note(node, message, reply):
        if message.kind == "score":
            written.append((tmp_path / "run" / f"round-{message.values['round']:06d}").is_dir())
        return reply

    settings = {"method": "fedavg", "dp_noise": 1.0, "refuse_ratio": 0.0, "checkpoint_every": 10, "rounds": 2}
    server_loop(tmp_path, fake_network(tmp_path, change=note), **settings).run()
    assert written
    assert all(written)
