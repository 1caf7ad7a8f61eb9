"""Compressed updates on their way from a site to the server."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.compressed_updates import WithCompression

import fedfew
from fedfew.flower import wire
from fedfew.flower.client_state import ClientStates
from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.messages import RefusedError, check_tree
from fedfew.stack import branch, leaves, named_leaves, tensor
from tests.flower.support import FEDERATION, SETTINGS, fake_network, server_loop, tiny

METHOD = "fedfew:models=2"


def simulated_with(way: str, rounds: int) -> fedfew.Run:
    config = DeploymentConfig(**SETTINGS)
    method = WithCompression(fedfew.FedFew(models=2), way, feedback=way == "int8")  # type: ignore[arg-type]
    return fedfew.train(
        FEDERATION, tiny, method, rounds=rounds, batch_size=config.batch_size, lr=config.lr, score_every=1, engine="sequential"
    )


def farthest(run: fedfew.Run, other: fedfew.Run) -> float:
    pairs = zip(named_leaves(run.state.server), named_leaves(other.state.server), strict=True)
    return max(float((a - b).abs().max()) for (_, a), (_, b) in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bf16", "int8"])
def test_a_compressed_run_ends_as_the_compressed_one_in_the_simulator(tmp_path, way: str) -> None:
    run = server_loop(tmp_path, fake_network(tmp_path), method=METHOD, compression=way).run()
    assert farthest(run, simulated_with(way, 3)) < 1e-6
    assert run.history.bytes_up.tolist() == simulated_with(way, 3).history.bytes_up.tolist()
    assert run.state.events == []


@pytest.mark.parametrize("way", ["bf16", "int8"])
def test_a_round_differs_from_an_uncompressed_one_by_no_more_than_the_rounding(tmp_path, way: str) -> None:
    """The server adds a weighted mean of updates, each off by at most 2⁻⁸ of itself, or half its tensor's scale."""
    largest: list[float] = []

    def watch(node, message, reply):
        largest.extend(float(t.abs().max()) for t in leaves(reply.tree))
        return reply

    plain = server_loop(tmp_path / "plain", fake_network(tmp_path / "plain", change=watch), method=METHOD, rounds=1).run()
    run = server_loop(tmp_path, fake_network(tmp_path), method=METHOD, compression=way, rounds=1).run()
    bound = max(largest) * (2.0**-8 if way == "bf16" else 1 / 254)
    assert 0 < farthest(run, plain) <= bound + 1e-7


def test_what_was_lost_is_kept_at_the_site(tmp_path) -> None:
    run = server_loop(tmp_path, fake_network(tmp_path), method=METHOD, compression="int8").run()
    oracle = branch(simulated_with("int8", 3).state.own, "lost")
    for i in range(4):
        kept = ClientStates(tmp_path / "sites" / f"client-{i}" / run.state.sites["run"]).read(3)
        assert kept is not None
        for name, lost in named_leaves(branch(kept, "wire")):
            torch.testing.assert_close(lost, tensor(oracle, name)[i], rtol=1e-4, atol=1e-7)


def test_fewer_bytes_leave(tmp_path) -> None:
    up = {}
    for way in ("none", "bf16", "int8"):
        server_loop(tmp_path / way, fake_network(tmp_path / way), method=METHOD, compression=way, rounds=1).run()
        lines = (tmp_path / way / "sites" / "client-0" / "audit.jsonl").read_text().splitlines()
        up[way] = next(message["bytes"] for message in map(json.loads, lines) if message["kind"] == "train")
    numbers = 2 * sum(t.numel() for t in tiny().state_dict().values())
    assert up == {"none": 4 * numbers, "bf16": 2 * numbers, "int8": numbers + 2 * 4 * 4}


def test_what_comes_in_is_checked() -> None:
    update = {"w": torch.randn(2, 3)}
    for way in ("none", "bf16", "int8"):
        sent, _ = wire.outgoing(update, {}, way)  # type: ignore[arg-type]
        check_tree(sent, wire.expected(update, way))  # type: ignore[arg-type]
        back = wire.incoming(sent, update, way)  # type: ignore[arg-type]
        assert tensor(back, "w").shape == (2, 3)
    bits, _ = wire.outgoing({"w": torch.full((2, 3), float("nan"))}, {}, "bf16")
    check_tree(bits, wire.expected(update, "bf16"))  # whole numbers, all of them finite
    with pytest.raises(RefusedError, match="w is not finite"):
        wire.incoming(bits, update, "bf16")
    sent, _ = wire.outgoing(update, {}, "int8")
    branch(sent, "w")["scale"] = torch.tensor([-1.0, 1.0])
    with pytest.raises(RefusedError, match="w/scale is negative"):
        wire.incoming(sent, update, "int8")
    with pytest.raises(RefusedError, match="tensors are missing"):
        check_tree(update, wire.expected(update, "int8"))


def test_an_unknown_way_is_answered() -> None:
    with pytest.raises(ValueError, match="compression must be none, bf16 or int8, not 'zip'"):
        DeploymentConfig.read({"compression": "zip"})
