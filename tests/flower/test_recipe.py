"""Sites on Flower train by the same recipe as clients in the simulator, with the learning rate of the server's round."""

from __future__ import annotations

import numpy as np
import pytest

import fedfew
from fedfew.flower.deployment_config import DeploymentConfig
from tests.flower.support import FEDERATION, SETTINGS, fake_network, same_as_simulated, server_loop, tiny
from tests.training.test_schedule import RECIPE


@pytest.mark.slow
@pytest.mark.parametrize("share", ["none", "body"])  # with one body, a site uses μ itself
def test_sites_train_by_the_recipe_of_the_run(share, tmp_path):
    run = server_loop(
        tmp_path, fake_network(tmp_path), method=f"fedfew:models=2,share={share}", rounds=5, smoothing_end=0.1, **RECIPE
    ).run()
    config = DeploymentConfig(**(SETTINGS | RECIPE | {"rounds": 5}))
    oracle = fedfew.train(
        FEDERATION,
        tiny,
        fedfew.FedFew(models=2, share=share),
        rounds=config.rounds,
        batch_size=config.batch_size,
        score_every=config.score_every,
        engine="sequential",
        smoothing_end=0.1,
        **RECIPE,
    )
    same_as_simulated(run, oracle, tmp_path / "sites")


@pytest.mark.parametrize(
    ("aggregation", "spread", "tolerance"),
    # differences between losses are a twentieth of them (with a spread a hundredth counts) and go in squared, so what their last
    # digits are worth grows as much; how these are rounded depends on the processor, and three rounds add to it
    [("plain", 0.0, 1e-4), ("plain", 1.0, 1e-4), ("masked", 0.0, 1e-3)],
)
def test_sites_keep_the_samples_apart_that_clients_of_a_simulation_do(aggregation, spread, tolerance, tmp_path):
    settings = {"rounds": 4, "check_share": 0.4, "smoothing_spread": spread, "label_prior": "client", "seed": 2}
    network = fake_network(tmp_path)
    run = server_loop(tmp_path, network, method="fedfew:models=2,mu=0.02", aggregation=aggregation, **settings).run()
    kept = {"batch_size": SETTINGS["batch_size"], "lr": SETTINGS["lr"], "engine": "sequential"}
    oracle = fedfew.train(FEDERATION, tiny, fedfew.FedFew(models=2, mu=0.02), **kept, **settings)
    assert run.history.confirmed[-1] < 1
    assert (run.history.confirmed[0] > 1) == (spread > 0)
    np.testing.assert_allclose(run.history.confirmed, oracle.history.confirmed, rtol=tolerance)
    if aggregation == "plain":
        same_as_simulated(run, oracle, tmp_path / "sites")
