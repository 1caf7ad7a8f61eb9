"""Flower's simulation ends with the parameters of the sequential engine, for every method; and it takes a hundred clients."""

from pathlib import Path

import pytest

import fedfew
from tests.flower.support import APP, EXAMPLE, deployment, same_as_simulated, simulated, tiny
from tests.methods.tiers import ON_A_NETWORK

pytestmark = pytest.mark.deploy
ALL = [*ON_A_NETWORK, "fedfew:share=body,mu=0.1"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with deployment(tmp_path_factory.mktemp("simulation"), simulation=True) as here:
        yield here


def test_every_method_in_flowers_simulation(here):
    runs = here.folder / "methods"
    output = here.run(APP, {"test.methods": ";".join(ALL), "rounds": 3, "folder": str(runs)}, nodes=4)
    for number, method in enumerate(ALL):
        assert (runs / str(number)).is_dir(), output[-3000:]
        run = fedfew.load(runs / str(number), tiny)
        assert [event for event in run.state.events if "most of the weight of model" not in event] == []
        same_as_simulated(run, simulated(method=method, rounds=3), here.folder / "sites")


def test_a_hundred_clients_with_the_example_app(here):
    folder = here.folder / "hundred"
    config = {"clients": 100, "rounds": 2, "participation": 0.2, "folder": str(folder), "method": "fedfew:models=4"}
    config["adapters"] = "lora:rank=4"  # every process makes the same frozen model
    output = here.run(EXAMPLE, config, nodes=100)
    assert (folder / "round-000002").is_dir(), output[-3000:]
    run = fedfew.load(folder)
    oracle = fedfew.train(
        fedfew.data.digits(clients=100),
        "mlp",
        fedfew.FedFew(models=4),
        rounds=2,
        batch_size=10,
        lr=0.1,
        participation=0.2,
        score_every=10,
        engine="sequential",
        adapters="lora:rank=4",
    )
    same_as_simulated(run, oracle, Path("unused"))
    assert (run.history.losses[-1] == run.history.losses[-1]).any(1).sum() == 20
