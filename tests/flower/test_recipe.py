"""Sites on Flower train by the same recipe as clients in the simulator, with the learning rate of the server's round."""

from __future__ import annotations

import pytest

import fedfew
from fedfew.flower.deployment_config import DeploymentConfig
from tests.flower.support import FEDERATION, SETTINGS, fake_network, same_as_simulated, server_loop, tiny
from tests.training.test_schedule import RECIPE


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
