"""A run's configuration, the app that is written to begin with, and the command group."""

import re
from pathlib import Path

import pytest

from fedfew import methods
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.secure.weighting import check_method
from fedfew.flower.server_state import _comparable

DOCS = Path(__file__).parents[2] / "docs"


def test_the_guide_lists_what_a_continued_run_may_change():
    _, _, rest = (DOCS / "deployment.md").read_text().partition("Those of the exchange may change:")
    listed = set(re.findall(r"`([\w-]+)`", rest.partition("\n\n")[0]))
    texts = {"tokenizer": "somewhere", "max_length": 8}
    compared = set(_comparable(DeploymentConfig(**texts))) | {"rounds", "folder", "clients", "classes"}
    assert listed == {name.replace("_", "-") for name in DeploymentConfig.names() if name not in compared}


def test_the_page_on_masks_lists_the_methods_that_are_refused():
    _, _, rest = (DOCS / "private-aggregation.md").read_text().partition("Refused are methods")
    listed = re.sub(r"[^a-z]", " ", rest.partition("\n\n")[0].lower()).split()
    for name in methods.METHODS:
        try:
            check_method(methods.make(name))
            assert name not in listed
        except ValueError:
            assert name in listed


def test_settings_are_read_from_a_configuration():
    config = DeploymentConfig.read(
        {"method": "fedfew:models=4, mu=0.003, published", "lr": 1, "score-every": 5, "mine.key": "kept"}
    )
    assert (config.lr, config.score_every) == (1.0, 5)
    settings = config.make_method().settings()
    assert (settings["models"], settings["mu"], settings["init_models"]) == (4, 0.003, "copies")
    assert config.for_sites()["method"] == settings


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quorom": 1}, "there is no setting of a run called 'quorom'; did you mean 'quorum'"),
        ({"models": 2}, 'models is not a setting of a run, but of the method: .*, method="fedfew:models=2"'),
        ({"method": "ifca:models=2", "num-models": 3}, 'num-models is not a setting .* method="ifca:models=3"'),
        ({"method": "fedfew:lr=0.1"}, "lr is a setting of the whole run, not of fedfew: give it a key of its own, lr=0.1$"),
        ({"method": "fedfew:score_every=2"}, "score_every is a setting of the whole run, .* key of its own, score-every=2$"),
        ({"method": "fedfew:modles=2"}, "there is no setting 'modles'; did you mean 'models'"),
        ({"learning-rate": 2}, "there is no setting of a run called 'learning-rate'; did you mean 'lr'"),
        ({"method": "fedavg", "alpha-shift": 2}, "there is no setting of a run called 'alpha-shift'"),
        ({"method": "fedavg", "init-models": "same"}, 'init-models is .* but of fedfew, .* method="fedfew:init_models=same"'),
        ({"attack": "noise"}, "attack is for simulations: they simulate hostile clients"),
        ({"early-stopping": 3}, "early-stopping is for simulations: on a network no validation data are kept apart"),
        ({"rounds": 0}, "rounds must be a whole number ≥ 1, not 0"),
        ({"rounds": "many"}, "rounds must be a whole number, not 'many'"),
        ({"quorum": 1.5}, r"quorum must be in \(0, 1\], not 1.5"),
        ({"deadline": 0}, "deadline must be a finite number > 0"),
        ({"classes": 1}, "classes must be 0 or ≥ 2, not 1"),
        ({"sites": "north,south"}, "sites must be empty, or the names of 4 different sites separated by commas"),
        ({"sites": "a,b,c,a"}, "sites must be empty, or the names of 4 different sites"),
        ({"clip-norm": -1}, "clip-norm must be a finite number ≥ 0"),
        ({"refuse-ratio": 0.5}, "refuse-ratio must be 0 or a finite number > 1"),
        ({"lr": float("inf")}, "lr must be a finite number > 0"),
        ({"participation": 0}, "participation must be in"),
        ({"method": "fedfoo"}, "there is no method 'fedfoo'"),
        ({"method": "fedavg:mu=1"}, "there is no setting 'mu'"),
        ({"method": "fedfew:models=9"}, r"models must be at most the number of clients \(4\)"),
    ],
)
def test_errors_name_the_setting_and_what_would_be_right(config, message):
    with pytest.raises(ValueError, match=message):
        DeploymentConfig.read(config)
