"""Adapters on a network: they alone are sent, and every site must have the server's base model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedfew
from fedfew.adapters import LoRA
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.server_loop import ServerLoop, TooFewError
from fedfew.stack import count_bytes
from tests.flower.support import (
    FEDERATION,
    SETTINGS,
    FakeNetwork,
    audit_log_of,
    fake_network,
    same_as_simulated,
    tiny,
)

BASE = tiny()
RANK, SENT = 2, 2 * (5 + 6) + (6 * 3 + 3)  # adapters of the first layer, and the head


def adapted() -> nn.Module:
    base = tiny()
    base.load_state_dict(BASE.state_dict())
    return LoRA(rank=RANK).adapt(base)


def loop(folder: Path, network: FakeNetwork) -> ServerLoop:
    for site in network.sites.values():
        site.model = site.model if site.model is not tiny else adapted
    config = DeploymentConfig(**(SETTINGS | {"folder": str(folder / "run"), "method": "fedfew:models=2"}))
    return ServerLoop(config, network, lambda data: adapted, network.clock)


def test_adapters_alone_are_sent_with_the_outcome_of_the_simulator(tmp_path: Path) -> None:
    down = []
    network = fake_network(tmp_path, change=lambda node, message, reply: down.append((message.kind, message.tree)) or reply)
    run = loop(tmp_path, network).run()
    oracle = fedfew.train(FEDERATION, adapted, fedfew.FedFew(models=2), rounds=3, batch_size=8, lr=0.1, engine="sequential")
    for name, value in oracle.state.server.items():
        torch.testing.assert_close(run.state.server[name], value, rtol=1e-5, atol=1e-5)
    trained = [line for line in audit_log_of(tmp_path, 1) if line["kind"] == "train"]
    assert [sum(array["bytes"] for array in line["arrays"]) for line in trained] == [2 * 4 * SENT] * 3
    assert {count_bytes(tree) for kind, tree in down if kind == "train"} == {2 * 4 * SENT}
    saved = load_file(tmp_path / "sites" / "client-1" / run.state.sites["run"] / "model.safetensors")
    assert torch.equal(saved["0.base.weight"], BASE[0].weight)
    for name, value in oracle.model_of(1).state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=1e-5, atol=1e-5)


def test_a_site_with_another_base_model_is_refused(tmp_path: Path) -> None:
    def other() -> nn.Module:
        module = adapted()
        with torch.no_grad():
            module[0].base.bias[3] += 1e-6
        return module

    network = fake_network(tmp_path)
    network.sites[102].model = other
    run = loop(tmp_path, network).run()
    left_out = [event for event in run.state.events if "left out" in event]
    assert left_out == [f"round {number}: client 2 is left out: the site failed: settings" for number in (1, 2, 3)]
    assert "frozen parameters are not those of the server" in (tmp_path / "sites" / "client-2" / "errors.log").read_text()
    every = fake_network(tmp_path / "all")
    for site in every.sites.values():
        site.model = other
    with pytest.raises(TooFewError):
        loop(tmp_path / "all", every).run()


HEAD = 6 * 3 + 3
PRODUCT = "lora:rank=2,alpha=4,average=product"


def dropping() -> nn.Module:
    """With dropout before the head, which features have not."""
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"adapters": "lora:rank=2,alpha=16.0"}, SENT),
        ({"freeze": "body"}, HEAD),
        pytest.param({"adapters": PRODUCT, "server_optimizer": "momentum"}, SENT, marks=pytest.mark.slow),
    ],
    ids=["adapters", "freeze", "product"],
)
def test_settings_alone_are_enough(settings: dict[str, Any], sent: int, tmp_path: Path) -> None:
    """The sites' own factory knows nothing of adapters; after a restart the server goes on with the same."""

    def server(**changes: Any) -> ServerLoop:
        network = fake_network(tmp_path)
        for site in network.sites.values():
            site.model = dropping
        config = DeploymentConfig(**(SETTINGS | {"folder": str(tmp_path / "run"), "method": "fedfew:models=2"} | changes))
        return ServerLoop(config, network, lambda data: dropping, network.clock)

    server(rounds=1, **settings).run()
    other = {"adapters": "lora:rank=3"} if "adapters" in settings else {"freeze": "none"}
    with pytest.raises(ValueError, match=f"belongs to another run: its {next(iter(settings))} is"):
        server(**other).run()
    run = server(**settings).run()
    training = {"rounds": 3, "batch_size": 8, "lr": 0.1, "engine": "sequential"}
    oracle = fedfew.train(FEDERATION, dropping, fedfew.FedFew(models=2), **training, **settings)
    same_as_simulated(run, oracle, tmp_path / "sites")
    assert {sum(array["bytes"] for array in line["arrays"]) for line in _trained(tmp_path)} == {8 * sent}
    assert any(f"{sent} of {_frozen(oracle) + sent} numbers are trained and sent" in event for event in run.state.events)
    x, _ = FEDERATION.test.of(1)
    found = fedfew.load(tmp_path / "run", dropping)
    torch.testing.assert_close(found.model_of(1)(x), oracle.model_of(1)(x), rtol=1e-4, atol=1e-5)
    saved = load_file(tmp_path / "sites" / "client-1" / run.state.sites["run"] / "model.safetensors")
    for name, value in oracle.model_of(1).state_dict().items():
        torch.testing.assert_close(saved[name], value, rtol=1e-4, atol=1e-5)


def _trained(folder: Path) -> list[dict[str, Any]]:
    return [line for line in audit_log_of(folder, 1) if line["kind"] == "train"]


def _frozen(run: fedfew.Run) -> int:
    return sum(value.numel() for value in run.state.frozen.values() if isinstance(value, torch.Tensor))


def test_settings_that_cannot_be_are_refused_by_the_configuration() -> None:
    with pytest.raises(ValueError, match=r"mixup is 0\.2, but freeze='body' computes features once"):
        DeploymentConfig.read({"freeze": "body", "mixup": 0.2})
    with pytest.raises(ValueError, match="there is no setting of lora called 'ranks'"):
        DeploymentConfig.read({"adapters": "lora:ranks=2"})


def test_losses_that_hardly_tell_adapters_apart_are_named_on_a_network_too(tmp_path: Path) -> None:
    def events(folder: str, **changes: Any) -> list[str]:
        network = fake_network(tmp_path / folder)
        given = SETTINGS | {"folder": str(tmp_path / folder / "run"), "rounds": 1, "adapters": f"lora:rank={RANK}"} | changes
        return list(ServerLoop(DeploymentConfig(**given), network, lambda data: tiny, network.clock).run().state.events)

    line = "loss_at is training: with adapters and 2 local epochs the losses of the last epoch hardly differ between models"
    assert any(event.startswith(line) for event in events("said", local_epochs=2))
    for number, quiet in enumerate(({"local_epochs": 1}, {"local_epochs": 2, "method": "fedfew:loss_at=received"})):
        assert not any("loss_at" in event for event in events(str(number), **quiet))
