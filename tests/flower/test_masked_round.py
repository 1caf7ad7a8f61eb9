"""A run under masks ends as a plain one does, and what leaves a site does not show its update."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedfew.flower.deployment_config import DeploymentConfig
from fedfew.flower.exchanges import Exchanges
from fedfew.flower.masked_round import MaskedRound
from fedfew.flower.messages import FAILED, MASK, REVEAL, SHARE_KEYS, TRAIN, SiteMessage
from fedfew.flower.secure.server import MaskingServer
from fedfew.flower.server_state import ServerState
from fedfew.flower.site_errors import SiteError
from fedfew.methods.base import Reply
from fedfew.stack import named_leaves
from fedfew.training.per_client import PerClient
from tests.flower.support import FEDERATION, SETTINGS, fake_network, server_loop, simulated, site

QUANTISED = 1e-6  # mask-clip 1024 in 2⁴⁸ steps is far finer; float32 is what is left


def lost(kind: str, client: int, number: int):
    """Loses a client's answer to a message of this kind in this round."""

    def change(node, message, reply):
        gone = message.kind == kind and node == 100 + client and message.values["round"] == number
        return None if gone else reply

    return change


def runs(tmp_path, masked_change=None, plain_change=None, **config):
    """The same run under masks and without."""
    hidden = server_loop(tmp_path / "m", fake_network(tmp_path / "m", change=masked_change), aggregation="masked", **config).run()
    open_ = server_loop(tmp_path / "p", fake_network(tmp_path / "p", change=plain_change), **config).run()
    return hidden, open_


def assert_same(hidden, open_):
    for (name, a), (_, b) in zip(named_leaves(hidden.state.server), named_leaves(open_.state.server), strict=True):
        torch.testing.assert_close(a, b, rtol=QUANTISED, atol=QUANTISED, msg=name)
    for column in ("losses", "choice", "left_out", "served_accuracy", "adapted_accuracy"):
        np.testing.assert_allclose(hidden.history[column], open_.history[column], rtol=1e-4, atol=1e-5, err_msg=column)


@pytest.mark.parametrize(
    "method",
    [
        "fedfew:mu=0.1",
        "fedavg",
        *(
            pytest.param(method, marks=pytest.mark.slow)
            for method in ("fedfew:share=body,mu=0.1", "fedfew:normalise=false", "ifca", "fedprox", "fedrep", "fedmtl")
        ),
    ],
)
def test_it_ends_as_a_plain_run_does(method, tmp_path):
    hidden, open_ = runs(tmp_path, method=method)
    assert_same(hidden, open_)
    assert hidden.round == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SHARE_KEYS, MASK])
def test_a_client_that_drops_out_between_the_phases_is_left_out_as_in_a_plain_run(kind, tmp_path):
    config = {"method": "fedfew:mu=0.1", "rounds": 2}
    hidden, open_ = runs(tmp_path, lost(kind, 3, 2), lost(TRAIN, 3, 2), **config)
    assert_same(hidden, open_)
    assert [e for e in hidden.state.events if "left out" in e] == ["round 2: client 3 is left out: no reply within the deadline"]


def test_a_client_that_drops_out_after_its_upload_still_counts(tmp_path):
    def change(node, message, reply):
        return SiteMessage(FAILED, {"error": "state"}) if message.kind == REVEAL and node == 103 else reply

    hidden, open_ = runs(tmp_path, change, None, method="fedfew:mu=0.1", rounds=2)
    assert_same(hidden, open_)
    assert hidden.history["left_out"].tolist() == [0, 0]


def test_too_many_drop_outs_lose_the_round_and_it_is_repeated(tmp_path):
    """Of four clients three are needed; two fail in the first attempt."""
    failed = []

    def change(node, message, reply):
        if message.kind == MASK and message.values["round"] == 2 and node in (101, 102) and node not in failed:
            failed.append(node)
            return SiteMessage(FAILED, {"error": "request"})
        return reply

    hidden, open_ = runs(tmp_path, change, None, method="fedfew:mu=0.1", rounds=2)
    assert_same(hidden, open_)
    assert "round 2: 2 of 4 clients uploaded, but 3 are needed: nothing is unmasked" in hidden.state.events
    assert "round 2: repeated (attempt 2 of 3)" in hidden.state.events


def test_survivors_of_a_masked_round_must_be_a_quorum(tmp_path):
    """Three of four are enough to unmask, but not for a quorum of all."""
    config = {"method": "fedavg", "aggregation": "masked", "rounds": 1, "quorum": 1.0, "attempts": 1}
    with pytest.raises(RuntimeError, match="round 1 has no quorum after 1 attempts"):
        server_loop(tmp_path, fake_network(tmp_path, change=lost(MASK, 3, 1)), **config).run()


def test_a_run_that_never_gets_enough_stops_and_keeps_what_it_has(tmp_path):
    def change(node, message, reply):
        return None if message.kind == SHARE_KEYS and message.values["round"] == 2 and node > 101 else reply

    with pytest.raises(RuntimeError, match="round 2 has no quorum after 3 attempts"):
        server_loop(tmp_path, fake_network(tmp_path, change=change), aggregation="masked").run()


def test_nothing_that_leaves_a_site_is_its_update(tmp_path):
    """All floating-point values that leave are losses and scores; the only array as large as the update looks like noise."""
    seen = []

    def change(node, message, reply):
        seen.append(reply)
        return reply

    server_loop(tmp_path, fake_network(tmp_path, change=change), aggregation="masked", method="fedfew:mu=0.1", rounds=1).run()
    arrays = [(reply.kind, path, t) for reply in seen for path, t in named_leaves(reply.tree)]
    assert {(kind, path) for kind, path, _ in arrays} == {(SHARE_KEYS, "sealed"), (MASK, "masked"), (REVEAL, "shares")}
    assert not any(t.is_floating_point() for _, _, t in arrays)
    uploads = np.concatenate([t.numpy() for _, path, t in arrays if path == "masked"]).view(np.uint8)
    assert abs(uploads.astype(float).mean() - 127.5) < 6 * 73.9 / len(uploads) ** 0.5


def test_a_site_keeps_its_secrets_to_itself_and_deletes_them(tmp_path):
    modes = []

    def change(node, message, reply):
        folder = tmp_path / "sites" / "client-0" / str(message.values.get("run")) / "masked"
        modes.append((node, message.kind, sorted((path.name, oct(path.stat().st_mode)[-3:]) for path in folder.glob("*"))))
        return reply

    server_loop(tmp_path, fake_network(tmp_path, change=change), aggregation="masked", rounds=1).run()
    of_0 = {kind: files for node, kind, files in modes if node == 100}
    assert of_0[TRAIN] == of_0[MASK] == [("client", "600"), ("update", "600")]
    assert of_0[REVEAL] == []
    log = (tmp_path / "sites" / "client-0" / "audit.jsonl").read_text()
    assert {json.loads(line)["kind"] for line in log.splitlines()} == {"join", "train", "share-keys", "mask", "reveal", "score"}


@pytest.mark.parametrize("kind", [SHARE_KEYS, MASK, REVEAL])
def test_a_step_asked_for_again_is_refused_by_the_next_process(kind, tmp_path):
    seen = []

    def change(node, message, reply):
        if message.kind == kind and node == 100:
            seen.append(site(tmp_path / "sites", 0).handle(message) if not seen else reply)
        return reply

    with pytest.raises(SiteError) as caught:
        server_loop(tmp_path, fake_network(tmp_path, change=change), aggregation="masked", rounds=1).run()
    words = "no update is pending here" if kind == REVEAL else "each is taken once"
    assert words in str(caught.value.__cause__)


def test_a_site_may_insist_on_masks(tmp_path):
    network = fake_network(tmp_path)
    network.sites[103] = site(tmp_path / "sites", 3, **{"masked-only": True})
    run = server_loop(tmp_path, network, rounds=1).run()
    assert "round 1: client 3 is left out: the site failed: settings" in run.state.events
    again = fake_network(tmp_path / "m")
    again.sites[103] = site(tmp_path / "m" / "sites", 3, **{"masked-only": True})
    assert server_loop(tmp_path / "m", again, rounds=1, aggregation="masked").run().history["left_out"].tolist() == [0]


def test_a_site_may_refuse_a_large_weight_and_the_server_logs_who_has_one(tmp_path):
    """A small μ puts nearly all weight of a model on one client."""
    network = fake_network(tmp_path)
    config = {"aggregation": "masked", "rounds": 1, "method": "fedfew:mu=0.0001,most_share=1"}
    run = server_loop(tmp_path, network, **config).run()
    warned = [event for event in run.state.events if "reveals nearly all of its update" in event]
    assert len(warned) == 1
    alone = int(warned[0].split("client ")[1].split()[0])
    careful = fake_network(tmp_path / "c")
    careful.sites[100 + alone] = site(tmp_path / "c" / "sites", alone, **{"most-weight": 0.5})
    run = server_loop(tmp_path / "c", careful, **config).run()
    assert f"round 1: client {alone} is left out: the site failed: weight" in run.state.events
    model = warned[0].split("model ")[1].split(",")[0]
    assert f"round 1: model {model} stays as it is: the clients with nearly all of its weight dropped out" in run.state.events


def test_a_client_with_invalid_keys_is_left_out(tmp_path):
    def change(node, message, reply):
        if message.kind == TRAIN and node == 101:
            reply.values["keys"] = "00" * 96
        return reply

    run = server_loop(tmp_path, fake_network(tmp_path, change=change), aggregation="masked", rounds=1, method="fedavg").run()
    assert run.state.events == ["round 1: client 1 is left out: its keys are not new and different"]  # both are zero
    assert run.history["left_out"].tolist() == [1]


def test_norms_are_clipped_at_the_site(tmp_path):
    hidden, open_ = runs(tmp_path, method="fedavg", rounds=1, clip_norm=0.01)
    assert_same(hidden, open_)
    free = server_loop(tmp_path / "f", fake_network(tmp_path / "f"), method="fedavg", rounds=1).run()
    assert any(
        not torch.equal(a, b)
        for (_, a), (_, b) in zip(named_leaves(free.state.server), named_leaves(hidden.state.server), strict=True)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "fedamp"}, "aggregation = 'masked' cannot be used with fedamp"),
        ({"method": "local"}, "cannot be used with local: its server uses no updates, so there is nothing to mask"),
        ({"compression": "int8"}, "compression must be none where aggregation is masked, not 'int8'"),
        ({"aggregator": "median"}, "aggregator must be mean where aggregation is masked, not 'median'"),
        ({"clients": 2, "method": "fedavg"}, "a round must have 3 to 1000 clients where aggregation is masked, not 2"),
        ({"participation": 0.5}, r"a round must have 3 .*, not 2: change participation \(it is 0.5\) or clients \(4\)"),
        ({"clients": 1001}, "a round must have 3 to 1000 clients where aggregation is masked, not 1001"),
        ({"mask_clip": 0.0}, "mask-clip must be a number from 1e-9 to 1e9, not 0.0"),
        ({"aggregation": "hidden"}, "aggregation must be plain or masked, not 'hidden'"),
    ],
)
def test_what_cannot_be_masked_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        DeploymentConfig(**(SETTINGS | {"aggregation": "masked"} | changes))


def test_a_model_of_which_nothing_is_sent_has_nothing_to_mask():
    with pytest.raises(ValueError, match="has nothing to mask"):
        MaskedRound(Reply({}, torch.zeros(3, 1), torch.ones(3)), None, 1.0, {}, None, print)


def unmasked_sums(monkeypatch):
    """Every sum that the server unmasks, with its session."""
    found = []
    unmask = MaskingServer.unmask

    def record(server):
        total = unmask(server)
        found.append(server.session)
        return total

    monkeypatch.setattr(MaskingServer, "unmask", record)
    return found


def test_a_curious_server_gets_one_sum_per_round(tmp_path, monkeypatch):
    """Client 3 does not upload in the first attempt, and a quorum of all is required. Were the sum of the other three unmasked
    and the round repeated, the two sums' difference would be client 3's update."""
    sums, dropped = unmasked_sums(monkeypatch), []

    def change(node, message, reply):
        if message.kind == MASK and node == 103 and not dropped:
            dropped.append(node)
            return SiteMessage(FAILED, {"error": "request"})
        return reply

    run = server_loop(
        tmp_path, fake_network(tmp_path, change=change), method="fedavg", aggregation="masked", rounds=1, quorum=1.0
    ).run()
    assert "round 1: 3 clients uploaded, 4 are a quorum: nothing is unmasked" in run.state.events
    assert "round 1: repeated (attempt 2 of 3)" in run.state.events
    assert len(sums) == 1


def test_sites_do_not_take_part_in_a_round_whose_shares_they_have_revealed(tmp_path):
    """A server asks for the same round again, as if the first had been lost: every site refuses."""
    asked = []

    def note(node, message, reply):
        asked.extend([(node, message)] if message.kind == TRAIN else [])
        return reply

    network = fake_network(tmp_path, change=note)
    server_loop(tmp_path, network, method="fedavg", aggregation="masked", rounds=1).run()
    for node, message in asked:
        with pytest.raises(SiteError, match="revealed") as caught:
            network.sites[node].handle(message)
        assert "this site has revealed its shares of round 1" in str(caught.value.__cause__)


def test_a_server_killed_after_unmasking_does_not_get_a_second_sum(tmp_path, monkeypatch):
    """It is killed before it writes the checkpoint of round 2. Restarted, it leaves round 2 out and trains round 3."""
    sums = unmasked_sums(monkeypatch)
    complete = ServerState.complete

    def killed(state, number, *rest):
        if number == 2:
            raise KeyboardInterrupt
        complete(state, number, *rest)

    monkeypatch.setattr(ServerState, "complete", killed)
    settings = {"method": "fedavg", "aggregation": "masked", "rounds": 3, "score_every": 3}
    with pytest.raises(KeyboardInterrupt):
        server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    monkeypatch.setattr(ServerState, "complete", complete)
    run = server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    assert "round 2: sites have revealed their shares of it, and do so once: the models stay as they are" in run.state.events
    assert run.round == 3
    assert len(sums) == 3  # rounds 1, 2 (lost with the server) and 3


def test_a_masked_round_is_checkpointed_at_once(tmp_path, monkeypatch):
    """Whatever checkpoint-every is, and before the round is scored."""
    rounds = []
    monkeypatch.setattr(Exchanges, "score", lambda self, number: rounds.append(saved()) or PerClient(4))

    def saved():
        return sorted(path.name for path in (tmp_path / "run").glob("round-*"))[-1]

    settings = {"method": "fedavg", "aggregation": "masked", "rounds": 3, "checkpoint_every": 3, "score_every": 1}
    server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    assert rounds == ["round-000001", "round-000002", "round-000003"]


def test_a_round_whose_sum_cannot_be_unmasked_leaves_the_models_as_they_are(tmp_path):
    """Two of four sites fail to reveal in round 1; three are needed. The others have revealed, so the round is not repeated."""

    def change(node, message, reply):
        gone = message.kind == REVEAL and message.values["round"] == 1 and node > 101
        return SiteMessage(FAILED, {"error": "state"}) if gone else reply

    settings = {"method": "fedavg", "aggregation": "masked", "rounds": 1}
    run = server_loop(tmp_path, fake_network(tmp_path, change=change), **settings).run()
    assert run.state.events == [
        "round 1: client 2 does not reveal its shares: the site failed: state",
        "round 1: client 3 does not reveal its shares: the site failed: state",
        "round 1: 2 of 4 clients revealed their shares, but 3 are needed: nothing is unmasked. Sites reveal shares once per "
        "round: the models stay as they are",
    ]
    start = simulated(method="fedavg", rounds=1, lr=1e-12).state.server
    for (_, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(start), strict=True):
        torch.testing.assert_close(a, b)


def test_a_site_s_largest_weight_holds_when_others_drop_out(tmp_path):
    """FedAvg weighs by samples. The largest site allows itself a little more than its weight. When another site drops out after
    the weights were sent, it would have more than that: nobody reveals, and nothing is unmasked."""
    counts = FEDERATION.train.count.tolist()
    largest = counts.index(max(counts))
    other = next(
        i for i in range(4) if i != largest and counts[largest] / (sum(counts) - counts[i]) > counts[largest] / sum(counts)
    )
    limit = (counts[largest] / sum(counts) + counts[largest] / (sum(counts) - counts[other])) / 2
    settings = {"method": "fedavg", "aggregation": "masked", "rounds": 1}
    for name, change, refused in (("all", None, 0), ("dropped", lost(MASK, other, 1), 3)):
        network = fake_network(tmp_path / name, change=change)
        network.sites[100 + largest] = site(tmp_path / name / "sites", largest, **{"most-weight": limit})
        run = server_loop(tmp_path / name, network, **settings).run()
        refusals = [event for event in run.state.events if event.endswith("does not reveal its shares: the site failed: weight")]
        assert len(refusals) == refused


def test_a_damaged_note_of_revealed_rounds_costs_one_round(tmp_path):
    """The round that is asked for may be the one whose shares were revealed; a later one is not. It was refused for ever."""
    settings = {"method": "fedavg", "aggregation": "masked"}
    run = server_loop(tmp_path, fake_network(tmp_path), rounds=2, **settings).run()
    note = tmp_path / "sites" / "client-1" / run.state.sites["run"] / "revealed.json"
    note.write_bytes(b"2" * 40)
    run = server_loop(tmp_path, fake_network(tmp_path), rounds=5, **settings).run()
    assert run.state.events == ["resumed after round 2", "round 3: client 1 is left out: the site failed: revealed"]
    assert (
        "this site leaves out round 3, whose shares it may have revealed"
        in (tmp_path / "sites" / "client-1" / "errors.log").read_text()
    )
    assert run.state.sites["last"] == [5, 5, 5, 5]
