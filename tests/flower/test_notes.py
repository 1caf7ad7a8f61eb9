"""What the simulator prints about settings before the first round is printed on a network as well, by the server or the site."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fedfew
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.server_loop import ServerLoop
from tests.flower.support import FEDERATION, SETTINGS, fake_network, server_loop, simulated, tiny

OF_THE_RECIPE = {"serve": "mixture", "smoothing_end": 0.25, "check_share": 0.1, "server_optimizer": "momentum"}


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + 0.01 * torch.randn_like(x))


def printed_by_the_simulator(model, method, settings) -> list[str]:
    lines: list[str] = []
    same = {name: SETTINGS[name] for name in ("batch_size", "lr", "score_every")} | {"rounds": 1, "engine": "sequential"}
    method = DeploymentConfig(**SETTINGS | {"method": method}).make_method()
    fedfew.train(FEDERATION, model, method, on_round=lambda progress: lines.extend(progress.events), **same | settings)
    return [line for line in lines if not line.startswith(("engine: ", "dp_noise: "))]  # the latter is about simulations


@pytest.mark.parametrize(
    ("model", "method", "settings", "count"),
    [
        (tiny, "fedavg", OF_THE_RECIPE | {"smoothing_spread": 1.0, "restart_unused": 2}, 5),
        (tiny, "local", {"server_average": 0.5, "server_optimizer": "momentum", "aggregator": "median"}, 3),
        (tiny, "fedbn", {"step_factor": 0.5}, 2),
        (tiny, "fedavg", {"dp_noise": 1.0, "dp_delta": 0.3, "check_share": 0.1}, 2),
        (Noisy, "fedavg", {}, 1),
        (lambda: nn.Sequential(constant()), "fedfew:models=2", {}, 1),
    ],
    ids=["recipe", "local", "fedbn", "privacy", "own randomness", "equal starts"],
)
def test_lines_about_settings_are_those_of_the_simulator(model, method, settings, count, tmp_path):
    expected = printed_by_the_simulator(model, method, settings)
    assert len(expected) == count
    network = fake_network(tmp_path)
    for here in network.sites.values():
        here.model = model
    of_server = {"refuse_ratio": 0.0} if "dp_noise" in settings else {}
    config = DeploymentConfig(
        **SETTINGS | {"method": method, "rounds": 1, "folder": str(tmp_path / "run")} | settings | of_server
    )
    run = ServerLoop(config, network, lambda data: model, network.clock).run()
    assert sorted(run.state.events) == sorted(expected)


def constant() -> nn.Linear:
    layer = nn.Linear(5, 3)
    nn.init.constant_(layer.weight, 0.1)
    nn.init.zeros_(layer.bias)
    return layer


def test_a_server_that_resumes_prints_them_again_but_the_run_has_them_once(tmp_path, caplog):
    line = "smoothing_end is 0.5, but fedavg has no smoothing: it has no effect"
    settings = {"method": "fedavg", "smoothing_end": 0.5, "schedule": "cosine"}
    caplog.set_level("WARNING", logger="flwr.fedfew")
    server_loop(tmp_path, fake_network(tmp_path), rounds=1, **settings).run()
    run = server_loop(tmp_path, fake_network(tmp_path), rounds=2, **settings).run()
    assert (caplog.messages.count(line), run.state.events.count(line)) == (2, 1)
    assert any(event.startswith("rounds was 1 and is 2 now: the learning rate goes on by a cosine") for event in run.state.events)


def test_a_site_says_once_what_it_alone_knows(tmp_path, caplog):
    caplog.set_level("WARNING", logger="flwr.fedfew")
    server_loop(tmp_path, fake_network(tmp_path), method="fedavg", precision="bf16").run()
    line = "precision is 'bf16', which has no effect here: a CPU computes in float32"
    assert caplog.messages.count(line) == len(FEDERATION)


def test_settings_of_masks_without_effect(tmp_path):
    plain, masked = DeploymentConfig(mask_clip=1.0), DeploymentConfig(aggregation="masked", refuse_ratio=10.0)
    assert plain.without_effect() == ["mask-clip is 1, but aggregation is plain: it has no effect"]
    assert masked.without_effect() == ["refuse-ratio is 10, but masks hide the lengths of updates: it has no effect"]


def test_a_site_with_another_version_is_named(tmp_path):
    network = fake_network(tmp_path)
    network.change = lambda node, message, reply: (node == 102 and reply.values.update(version="0.0\x1b")) or reply
    run = server_loop(tmp_path, network, method="fedavg", rounds=1).run()
    assert run.state.events == [f"client 2 has fedfew 0.0, the server {fedfew.__version__}: all sites need the server's version"]


def test_models_that_do_not_specialise_are_named_as_in_the_simulator(tmp_path):
    changes = {"rounds": 10, "local_epochs": 20, "lr": 0.3, "score_every": 5, "method": "fedfew:models=2"}
    oracle, run = simulated(**changes), server_loop(tmp_path, fake_network(tmp_path), **changes).run()
    (line,) = [event for event in run.state.events if "models have not specialised" in event]
    assert line in oracle.state.events
