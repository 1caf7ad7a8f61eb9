"""The server loop, with a network of sites in this process."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedfew
from fedfew import export, report
from fedfew.engines.sequential import Sequential
from fedfew.flower import records
from fedfew.flower.client_state import ClientStates
from fedfew.flower.server_loop import TooFewError
from fedfew.methods import METHODS, FedBABU
from fedfew.report.page.document import of_run
from fedfew.report.page.record import InMemory
from fedfew.stack import named_leaves, tree_map
from tests.flower.support import (
    FEDERATION,
    LOST,
    audit_log_of,
    fake_network,
    losing,
    same_as_simulated,
    server_loop,
    simulated,
    site,
    tiny,
)
from tests.methods.tiers import tiered


@pytest.mark.parametrize("method", tiered([*METHODS, "fedfew:share=body,mu=0.1", "apfl:mixing=round"]))
def test_every_method_ends_as_in_the_simulator(method, tmp_path):
    run = server_loop(tmp_path, fake_network(tmp_path), method=method).run()
    same = simulated(method=method)
    same_as_simulated(run, same, tmp_path / "sites")
    notes = {"fedbn: the model has no BatchNorm layer, so this is fedavg"} if method == "fedbn" else set()
    assert set(run.state.events) - set(same.state.events) == notes
    assert fedfew.load(tmp_path / "run", lambda: None).round == 3


def test_one_exchange_per_round_and_one_more_where_it_is_scored(tmp_path):
    network = fake_network(tmp_path)
    server_loop(tmp_path, network, rounds=4, score_every=2, method="fedavg").run()
    assert [kind for kind, _ in network.exchanges] == ["join", "train", "train", "score", "train", "train", "score"]


@pytest.mark.parametrize("participation", [0.5, 0.75])
def test_participants_are_those_of_the_simulator_when_all_are_there(participation, tmp_path):
    settings = {"participation": participation, "quorum": 1.0, "method": "ditto"}
    run = server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    oracle = simulated(participation=participation, method="ditto")
    for name in ("losses", "adapted_accuracy", "served_accuracy", "choice"):
        np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_site_fine_tunes_when_a_round_is_scored_with_the_result_of_the_simulator(tmp_path, monkeypatch):
    """Of four rounds with half of the clients the last is scored: each trains once, and fine-tunes what it received last."""
    epochs = []
    original = Sequential.train
    monkeypatch.setattr(Sequential, "train", lambda engine, work: epochs.append(work.epochs) or original(engine, work))
    settings = {"method": "fedbabu:finetune_epochs=3", "participation": 0.5, "rounds": 4, "score_every": 4}
    run = server_loop(tmp_path, fake_network(tmp_path), **settings).run()
    assert sum(epochs) == 4 * 2 + 3 * 4  # of one epoch, and of three
    oracle = simulated(**settings)
    for name in ("losses", "adapted_accuracy", "served_accuracy", "served_loss", "choice"):
        np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_site_reports_that_its_fine_tuning_diverged(tmp_path, monkeypatch, caplog):
    original = FedBABU.fine_tuned
    monkeypatch.setattr(FedBABU, "fine_tuned", lambda *a: (original(*a)[0], torch.tensor([False])))
    with caplog.at_level("WARNING", logger="flwr.fedfew"):
        server_loop(tmp_path, fake_network(tmp_path), method="fedbabu:finetune_epochs=1", rounds=1).run()
    line = "round 1: fine-tuning diverged (lower lr): this client keeps the model that it started from"
    assert caplog.messages.count(line) >= len(FEDERATION)


def test_weights_are_over_those_who_answered(tmp_path):
    """FedAvg over clients 0, 1 and 3, by number of samples: what the simulator does with these three alone."""
    run = server_loop(tmp_path, fake_network(tmp_path, change=losing((2, 1))), method="fedavg", rounds=1).run()
    three = fedfew.train(FEDERATION.take([0, 1, 3]), tiny, fedfew.FedAvg(), rounds=1, batch_size=8, lr=0.1, engine="sequential")
    for (_, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(three.state.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert run.state.events == ["round 1: client 2 is left out: the site failed: state"]
    assert run.history.left_out.tolist() == [1]


def test_a_site_that_hangs_is_asked_again_when_it_has_answered(tmp_path):
    """It answers the message of round 1 only while round 3 is under way; nobody waits for it in rounds 2 and 3."""
    network = fake_network(tmp_path)
    held = {}

    def hang(node, message, reply):
        if message.kind == "train" and node == 102 and message.values["round"] == 1:
            held[str(network.count)] = records.to_records(reply)
            return None
        if message.kind == "train" and message.values["round"] == 3:
            network.replies.update(held)
        return reply

    network.change = hang
    run = server_loop(tmp_path, network, method="ditto", rounds=4, score_every=4).run()
    assert run.state.events == [
        "round 1: client 2 is left out: no reply within the deadline",
        "round 2: client 2 is not asked: it has not answered an earlier message yet",
        "round 3: client 2 is not asked: it has not answered an earlier message yet",
    ]
    assert [len(nodes) for kind, nodes in network.exchanges if kind == "train"] == [4, 3, 3, 4]
    assert run.state.sites["last"] == [4, 4, 4, 4]
    assert network.clock.now < 2 * 10


def test_a_client_whose_reply_was_lost_begins_again_from_its_state_before(tmp_path):
    """Its own model is then that of one round, not of two: what it trained in round 1 does not count."""
    lost = server_loop(tmp_path / "a", fake_network(tmp_path / "a", change=losing((2, 1))), method="local", rounds=2).run()
    kept = ClientStates(tmp_path / "a" / "sites" / "client-2" / lost.state.sites["run"])
    assert kept.rounds() == [1, 2]
    once = fedfew.train(FEDERATION, tiny, fedfew.LocalOnly(), rounds=1, batch_size=8, lr=0.1, engine="sequential")
    own = dict(named_leaves(kept.read(1)["own"]))
    torch.testing.assert_close(own["0.weight"][0], once.state.own["0.weight"][2])
    message = [line for line in audit_log_of(tmp_path / "a", 2) if line["kind"] == "train"][-1]
    assert message["values"]["started_from"] == 0
    assert message["values"]["round"] == 2


def test_a_round_without_a_quorum_is_repeated_with_the_same_outcome(tmp_path):
    seen = []

    def lossy(node, message, reply):
        if message.kind == "train" and message.values["round"] == 2:
            seen.append(node)
            return reply if len(seen) > 4 else LOST
        return reply

    run = server_loop(tmp_path, fake_network(tmp_path, change=lossy), method="apfl").run()
    assert len(seen) == 8
    assert "round 2: repeated (attempt 2 of 3)" in run.state.events
    same_as_simulated(run, simulated(method="apfl"), tmp_path / "sites")


def test_without_a_quorum_the_run_stops_and_keeps_its_state(tmp_path):
    everyone = [(client, 2) for client in range(4)]
    with pytest.raises(TooFewError, match="round 2 has no quorum after 2 attempts"):
        server_loop(tmp_path, fake_network(tmp_path, change=losing(*everyone)), attempts=2, checkpoint_every=10).run()
    assert fedfew.load(tmp_path / "run", tiny).round == 1


@pytest.mark.parametrize("policy", ["batch", "local"])
def test_the_server_refuses_a_policy_for_layers_that_the_model_has_not(policy, tmp_path):
    """At once, and not after all sites have failed."""
    network = fake_network(tmp_path)
    with pytest.raises(ValueError, match=f"batch_norm is '{policy}', but the model has no BatchNorm layer: leave it out"):
        server_loop(tmp_path, network, method="ifca", batch_norm=policy).run()
    assert [kind for kind, _ in network.exchanges] == ["join"]


def test_too_few_sites_to_begin_with(tmp_path):
    with pytest.raises(TooFewError, match=r"1 of 4 clients have joined in \d+ seconds, but the quorum is 2 .* clients 1, 2, 3"):
        server_loop(tmp_path, fake_network(tmp_path, clients=1)).run()


def test_a_round_counts_even_if_everyone_is_gone_when_it_is_scored(tmp_path):
    network = fake_network(tmp_path)

    def leave(node, message, reply):
        if message.kind == "train" and node == 103:
            network.sites.clear()
        return reply

    network.change = leave
    run = server_loop(tmp_path, network, method="fedavg", rounds=1).run()
    assert run.round == 1
    assert np.isnan(run.history.served_accuracy).all()
    assert not np.isnan(run.history.losses).any()


def test_diverged_models_stop_the_run_with_the_state_before(tmp_path):
    def burst(node, message, reply):
        if message.kind == "train" and message.values["round"] == 2:
            reply.tree = tree_map(lambda t: torch.full_like(t, 3e38), reply.tree)
        return reply

    with pytest.raises(fedfew.DivergedError, match="training diverged in round 2"):
        server_loop(tmp_path, fake_network(tmp_path, change=burst), method="fedfew:server_step=10").run()
    assert fedfew.load(tmp_path / "run", tiny).round == 1


def test_a_site_that_keeps_its_scores_to_itself(tmp_path):
    network = fake_network(tmp_path)
    network.sites[101] = site(tmp_path / "sites", 1, **{"share-scores": False})
    run = server_loop(tmp_path, network, method="fedfew").run()
    assert np.isnan(run.history.served_accuracy[:, 1]).all()
    assert np.isnan(run.history.adapted_accuracy[:, 1]).all()
    assert not np.isnan(run.history.served_accuracy[:, [0, 2, 3]]).any()
    assert run.history.choice[-1][1] == -1
    assert report.describe(run)["weights"]["models_in_use"] == len(set(run.history.choice[-1][[0, 2, 3]].tolist()))
    reported = [line["values"] for line in audit_log_of(tmp_path, 1)]
    assert not any({"choice", "accuracy", "loss", "test_samples"} & values.keys() for values in reported)
    folder = tmp_path / "sites" / "client-1" / run.state.sites["run"]
    about = json.loads((folder / "choice.json").read_text())
    oracle = simulated(method="fedfew")
    assert about["choice"] == int(oracle.choice[1])
    model = tiny()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    for name, t in oracle.model_of(1).state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], t, rtol=1e-5, atol=1e-5)


def test_where_all_sites_keep_their_scores_nothing_is_said_of_them(tmp_path):
    """Choices were NaN: models "in use" were counted, exports said that nobody uses any, and the report ended in an error."""
    network = fake_network(tmp_path)
    network.sites = {100 + i: site(tmp_path / "sites", i, **{"share-scores": False}) for i in range(4)}
    run = server_loop(tmp_path, network, method="fedfew:models=2").run()
    assert run.history.choice.tolist() == [[-1] * 4] * 3
    for ask in (lambda: run.choice, lambda: run.model_of(0)):
        with pytest.raises(ValueError, match=r"not known: that round was not scored, or the sites keep it .*share-scores=false"):
            ask()
    assert "models_in_use" not in report.describe(run)["weights"]
    page = of_run(InMemory(run.state))
    assert page["absent"]["choice"].endswith("the sites keep it to themselves.")
    folder = export.write(run, tmp_path / "export")
    card = json.loads((folder / "card.json").read_text())
    assert (card["of_single_clients"], [row["clients"] for row in card["models"]]) == ([], [None, None])
    readme = (folder / "README.md").read_text()
    assert "None: the sites keep theirs to themselves." in readme
    assert "model_of" not in readme
    assert "--client" not in readme


@pytest.mark.parametrize(
    ("there", "asked", "needed"), [(4, 2, 2), (3, 2, 2), (2, 2, 2), (1, None, 2)], ids=["all", "three", "two", "one"]
)
def test_a_quorum_is_of_the_clients_that_participation_draws(there, asked, needed, tmp_path):
    """Half of four clients are a round, whoever is away: these two must reply, not those that nobody asks."""
    network = fake_network(tmp_path)
    loop = server_loop(tmp_path, network, method="fedavg", participation=0.5, quorum=1.0, rounds=1, attempts=1)
    loop.begin()
    for node in range(100 + there, 104):
        del network.sites[node]
    if asked is None:
        with pytest.raises(TooFewError):
            loop.train()
        assert f"round 1: 1 clients are present, {needed} are needed" in loop.server_state.state.events
    else:
        loop.train()
        assert [len(nodes) for kind, nodes in network.exchanges if kind == "train"] == [asked]


@pytest.mark.parametrize(("quorum", "clients", "needed"), [(0.55, 20, 11), (0.28, 25, 7), (0.5, 5, 3), (1.0, 4, 4), (0.01, 4, 1)])
def test_a_quorum_is_not_one_more_by_rounding(quorum, clients, needed, tmp_path):
    assert server_loop(tmp_path, fake_network(tmp_path), quorum=quorum)._quorum(clients) == needed
