"""The course of a run over a network of sites in this process."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedfew
from fedfew import models
from fedfew.cli import app
from fedfew.flower import records
from fedfew.flower.client_state import Generations
from fedfew.flower.messages import FAILED, JOIN, Letter
from fedfew.flower.plan import Plan
from fedfew.flower.server_loop import Course, TooFewError
from fedfew.methods import METHODS
from fedfew.stack import named_leaves, take, tree_map
from tests.flower.small import FEDERATION, PLAN, course, neighbourhood, simulated, site, tiny

NOT_COMPARED = ("seconds", "bytes_up")  # local-only training sends its losses here


def same_as_simulated(run, oracle, sites, clients=4, tolerance=1e-5):
    """The server's state, the clients' own and the history, to float tolerance."""
    for (name, a), (other, b) in zip(named_leaves(run.state.server), named_leaves(oracle.state.server), strict=True):
        assert name == other
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert run.history.columns == oracle.history.columns
    for name in run.history.columns:
        if name not in NOT_COMPARED:
            np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-4, atol=1e-5, err_msg=name)
    if oracle.state.own:
        for i in range(clients):
            kept = Generations(sites / f"client-{i}" / run.state.sites["run"]).read(run.round)
            for name, t in named_leaves(take(oracle.state.own, torch.tensor([i]))):
                torch.testing.assert_close(dict(named_leaves(kept["own"]))[name], t, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", [*METHODS, "fedfew:share=body,mu=0.1", "apfl:mixing=round"])
def test_every_method_ends_as_in_the_simulator(method, tmp_path):
    run = course(tmp_path, neighbourhood(tmp_path), method=method).run()
    same_as_simulated(run, simulated(method=method), tmp_path / "sites")
    assert run.state.events == []
    assert fedfew.load(tmp_path / "run", lambda: None).round == 3


LOST = Letter(FAILED, {"why": "state"})


# -- who takes part ----------------------------------------------------------------------------------------------------------


def losing(*lost):
    """Answers to (client, round) that are lost; the sites have done their work."""

    def change(node, letter, reply):
        return LOST if letter.kind == "train" and (node - 100, letter.values["round"]) in lost else reply

    return change


def test_one_wave_a_round_and_one_more_where_it_is_scored(tmp_path):
    network = neighbourhood(tmp_path)
    course(tmp_path, network, rounds=4, score_every=2, method="fedavg").run()
    assert [kind for kind, _ in network.waves] == ["join", "train", "train", "score", "train", "train", "score"]


@pytest.mark.parametrize("participation", [0.5, 0.75])
def test_participants_are_those_of_the_simulator_when_all_are_there(participation, tmp_path):
    settings = {"participation": participation, "quorum": 1.0, "method": "ditto"}
    run = course(tmp_path, neighbourhood(tmp_path), **settings).run()
    oracle = simulated(participation=participation, method="ditto")
    for name in ("losses", "adapted_accuracy", "served_accuracy", "choice"):
        np.testing.assert_allclose(run.history[name], oracle.history[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_weights_are_over_those_who_answered(tmp_path):
    """FedAvg over clients 0, 1 and 3, by number of samples: what the simulator does with these three alone."""
    run = course(tmp_path, neighbourhood(tmp_path, change=losing((2, 1))), method="fedavg", rounds=1).run()
    three = fedfew.train(FEDERATION.take([0, 1, 3]), tiny, fedfew.FedAvg(), rounds=1, batch_size=8, lr=0.1, engine="sequential")
    for (_, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(three.state.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert run.state.events == ["round 1: client 2 is left out: the site failed: state"]
    assert run.history.left_out.tolist() == [1]


def test_a_site_that_hangs_is_asked_again_when_it_has_answered(tmp_path):
    """It answers the letter of round 1 only while round 3 is under way; nobody waits for it in rounds 2 and 3."""
    network = neighbourhood(tmp_path)
    held = {}

    def hang(node, letter, reply):
        if letter.kind == "train" and node == 102 and letter.values["round"] == 1:
            held[str(network.count)] = records.to_records(reply)
            return None
        if letter.kind == "train" and letter.values["round"] == 3:
            network.answers.update(held)
        return reply

    network.change = hang
    run = course(tmp_path, network, method="ditto", rounds=4, score_every=4).run()
    assert run.state.events == [
        "round 1: client 2 is left out: no answer within the deadline",
        "round 2: client 2 is not asked: it has not answered an earlier letter yet",
        "round 3: client 2 is not asked: it has not answered an earlier letter yet",
    ]
    assert [len(nodes) for kind, nodes in network.waves if kind == "train"] == [4, 3, 3, 4]
    assert run.state.sites["last"] == [4, 4, 4, 4]
    assert network.clock.now < 2 * 10


def test_a_client_whose_reply_was_lost_begins_again_from_its_state_before(tmp_path):
    """Its own model is then that of one round, not of two: what it trained in round 1 does not count."""
    lost = course(tmp_path / "a", neighbourhood(tmp_path / "a", change=losing((2, 1))), method="local", rounds=2).run()
    kept = Generations(tmp_path / "a" / "sites" / "client-2" / lost.state.sites["run"])
    assert kept.rounds() == [1, 2]
    once = fedfew.train(FEDERATION, tiny, fedfew.LocalOnly(), rounds=1, batch_size=8, lr=0.1, engine="sequential")
    own = dict(named_leaves(kept.read(1)["own"]))
    torch.testing.assert_close(own["0.weight"][0], once.state.own["0.weight"][2])
    letter = [line for line in left_by(tmp_path / "a", 2) if line["kind"] == "train"][-1]
    assert letter["values"]["began"] == 0
    assert letter["values"]["round"] == 2


def test_a_round_without_a_quorum_is_asked_for_again_and_ends_as_if_nothing_had_been(tmp_path):
    seen = []

    def lossy(node, letter, reply):
        if letter.kind == "train" and letter.values["round"] == 2:
            seen.append(node)
            return reply if len(seen) > 4 else LOST
        return reply

    run = course(tmp_path, neighbourhood(tmp_path, change=lossy), method="apfl").run()
    assert len(seen) == 8
    assert "round 2: asked for again (2 of 3)" in run.state.events
    same_as_simulated(run, simulated(method="apfl"), tmp_path / "sites")


def test_without_a_quorum_the_run_stops_and_keeps_its_state(tmp_path):
    everyone = [(client, 2) for client in range(4)]
    with pytest.raises(TooFewError, match="round 2 has no quorum after 2 attempts"):
        course(tmp_path, neighbourhood(tmp_path, change=losing(*everyone)), attempts=2, checkpoint_every=10).run()
    assert fedfew.load(tmp_path / "run", tiny).round == 1


def test_too_few_sites_to_begin_with(tmp_path):
    with pytest.raises(TooFewError, match=r"1 of 4 clients have joined in \d+ seconds, but the quorum is 2 .* clients 1, 2, 3"):
        course(tmp_path, neighbourhood(tmp_path, clients=1)).run()


def test_a_late_site_takes_part_from_the_next_round_on(tmp_path):
    network = neighbourhood(tmp_path, clients=3)

    def arrive(node, letter, reply):
        if letter.kind == "train" and letter.values["round"] == 2:
            network.sites[103] = site(tmp_path / "sites", 3)
        return reply

    network.change = arrive
    run = course(tmp_path, network, method="fedavg").run()
    answered = ~np.isnan(run.history.losses).any(2)
    assert answered.tolist() == [[True, True, True, False]] * 2 + [[True] * 4]
    assert run.state.events == ["begun without client 3"]


def test_a_restarted_site_is_the_same_client_once_its_old_self_is_gone(tmp_path):
    network = neighbourhood(tmp_path)

    def restart(node, letter, reply):
        if letter.kind == "train" and letter.values["round"] == 1:
            network.sites[202] = site(tmp_path / "sites", 2)  # known twice for a while
        if letter.kind == "score" and letter.values["round"] == 2 and node == 103:
            network.sites.pop(102, None)
        return reply

    network.change = restart
    run = course(tmp_path, network, method="ditto").run()
    assert run.state.events == [
        "a second node says it is client 2: it waits until the first is gone",
        "client 2 is back as another node",
    ]
    same_as_simulated(run, simulated(method="ditto"), tmp_path / "sites")
    assert 202 in network.waves[-1][1]
    assert 102 not in network.waves[-1][1]


def test_sites_that_do_not_fit_are_told_apart(tmp_path):
    network = neighbourhood(tmp_path, clients=3)
    network.sites[104] = site(tmp_path / "sites", 3)
    network.sites[105] = site(tmp_path / "sites", 3, data="no.such:module")

    def wide(node, letter, reply):
        if letter.kind == "join" and node == 104:
            reply.values["client"] = 7
        if letter.kind == "train":
            network.sites.setdefault(106, site(tmp_path / "sites", 3))
        if letter.kind == "join" and node == 106:  # late, with other data
            reply.values["shape"] = [6]
        return reply

    network.change = wide
    run = course(tmp_path, network, method="fedavg").run()
    assert "node 104 cannot take part: client is not a whole number from 0 to 3" in run.state.events
    assert "node 105 cannot take part: the site failed: data" in run.state.events
    assert "node 106 cannot take part: shape of its data is (6,), the run's is [5]" in run.state.events


def test_a_round_counts_even_if_everyone_is_gone_when_it_is_scored(tmp_path):
    network = neighbourhood(tmp_path)

    def leave(node, letter, reply):
        if letter.kind == "train" and node == 103:
            network.sites.clear()
        return reply

    network.change = leave
    run = course(tmp_path, network, method="fedavg", rounds=1).run()
    assert run.round == 1
    assert np.isnan(run.history.served_accuracy).all()
    assert not np.isnan(run.history.losses).any()


# -- what is wrong with an answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda reply: reply.tree.pop("0.bias"), "1 tensors are missing, the first is 0.bias"),
        (lambda reply: reply.tree.update({"more": torch.ones(1)}), "1 tensors too many"),
        (lambda reply: reply.tree.update({"0.bias": torch.ones(1, 7)}), r"0.bias has shape \[1, 7\]"),
        (lambda reply: reply.tree.update({"0.bias": torch.ones(1, 6, 2000)}), "0.bias is larger than it should be"),
        (lambda reply: reply.tree.update({"0.bias": torch.ones(1, 6).double()}), "0.bias has shape .* torch.float64, not"),
        (lambda reply: reply.tree["0.bias"].fill_(torch.inf), "0.bias is not finite"),
        (lambda reply: reply.tree["0.bias"].mul_(1e9), "its update is .* times as long as the round's median"),
        (lambda reply: reply.values.update(losses=[float("nan")]), "losses is not finite"),
        (lambda reply: reply.values.update(losses=[1.0, 2.0]), "losses is not a list of 1 numbers"),
        (lambda reply: reply.values.update(samples=10**6), "it was trained on another number of samples"),
        (lambda reply: reply.values.update(samples=0), "samples is not a whole number from 1"),
        (lambda reply: reply.values.update(client=2), "it is another client's, run's or round's"),
        (lambda reply: reply.values.update(round=7), "it is another client's, run's or round's"),
        (lambda reply: reply.values.update(run="x"), "it is another client's, run's or round's"),
        (lambda reply: reply.values.update(began="0"), "began is not a whole number"),
        (lambda reply: reply.values.update(accuracy=2.0), "its scores are out of bounds"),
    ],
)
def test_a_wrong_answer_is_left_out_by_name(change, reason, tmp_path):
    def wrong(node, letter, reply):
        if letter.kind == "train" and node == 101:
            change(reply)
        return reply

    run = course(tmp_path, neighbourhood(tmp_path, change=wrong), method="fedavg", rounds=1).run()
    (event,) = run.state.events
    assert re.match(f"round 1: client 1 is left out: {reason}", event)
    lost = course(tmp_path / "b", neighbourhood(tmp_path / "b", change=losing((1, 1))), method="fedavg", rounds=1).run()
    for (_, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(lost.state.server), strict=True):
        assert torch.equal(a, b)


def test_long_updates_are_shortened_where_asked_for(tmp_path):
    def huge(node, letter, reply):
        if letter.kind == "train" and node == 101:
            reply.tree = tree_map(lambda t: t * 1e6, reply.tree)
        return reply

    settings = {"method": "fedavg", "rounds": 1, "refuse_ratio": 0.0}
    free = course(tmp_path / "a", neighbourhood(tmp_path / "a", change=huge), **settings).run()
    short = course(tmp_path / "b", neighbourhood(tmp_path / "b", change=huge), clip_norm=0.01, **settings).run()
    start = fedfew.train(FEDERATION, tiny, fedfew.FedAvg(), rounds=1, batch_size=8, lr=1e-12, engine="sequential").state.server
    assert distance(free.state.server, start) > 1e3
    assert distance(short.state.server, start) < 0.01 + 1e-6
    assert [event for event in short.state.events if "client 1's update is shortened from" in event]


def distance(a, b):
    pairs = zip(named_leaves(a), named_leaves(b), strict=True)
    return sum(float((x - y).double().square().sum()) for (_, x), (_, y) in pairs) ** 0.5


def test_diverged_models_stop_the_run_with_the_state_before(tmp_path):
    def burst(node, letter, reply):
        if letter.kind == "train" and letter.values["round"] == 2:
            reply.tree = tree_map(lambda t: torch.full_like(t, 3e38), reply.tree)
        return reply

    with pytest.raises(fedfew.DivergedError, match="training diverged in round 2"):
        course(tmp_path, neighbourhood(tmp_path, change=burst), method="fedfew:server_step=10").run()
    assert fedfew.load(tmp_path / "run", tiny).round == 1


# -- stopping and going on ---------------------------------------------------------------------------------------------------


class PowerCutError(Exception):
    """The server is gone."""


@pytest.mark.parametrize("method", ["ditto", "fedamp", "fedfew"])
@pytest.mark.parametrize("checkpoint_every", [1, 2])
def test_a_server_that_was_killed_goes_on_from_its_checkpoint(method, checkpoint_every, tmp_path):
    """In round 4, when sites have trained it already; with a checkpoint every other round, rounds 3 and 4 are done again."""

    def cut(node, letter, reply):
        if letter.kind == "train" and letter.values["round"] == 4 and node == 103:
            raise PowerCutError
        return reply

    settings = {"method": method, "rounds": 5, "checkpoint_every": checkpoint_every}
    with pytest.raises(PowerCutError):
        course(tmp_path, neighbourhood(tmp_path, change=cut), **settings).run()
    after = {1: 3, 2: 2}[checkpoint_every]
    assert fedfew.load(tmp_path / "run", tiny).round == after
    run = course(tmp_path, neighbourhood(tmp_path), **settings).run()
    assert run.state.events == [f"resumed after round {after}"]
    same_as_simulated(run, simulated(method=method, rounds=5), tmp_path / "sites")


def test_a_site_that_lost_its_state_says_so(tmp_path):
    course(tmp_path, neighbourhood(tmp_path), method="ditto", rounds=2).run()
    shutil.rmtree(tmp_path / "sites" / "client-1")
    run = course(tmp_path, neighbourhood(tmp_path), method="ditto", rounds=3).run()
    assert run.state.events == [
        "resumed after round 2",
        "round 3: client 1 had lost its own state and began from that of round 0",
    ]


def test_a_folder_with_another_or_a_finished_run_is_refused(tmp_path):
    course(tmp_path, neighbourhood(tmp_path), method="fedavg").run()
    with pytest.raises(ValueError, match=r"rounds is 3, but the run in .* has done 3"):
        course(tmp_path, neighbourhood(tmp_path), method="fedavg").run()
    with pytest.raises(ValueError, match=r"belongs to another run: its lr is 0\.1, not 0\.2"):
        course(tmp_path, neighbourhood(tmp_path), method="fedavg", lr=0.2, rounds=9).run()


def test_a_site_that_changed_its_data_is_turned_away_when_the_run_goes_on(tmp_path):
    course(tmp_path, neighbourhood(tmp_path), method="fedavg", rounds=2).run()

    def wider(node, letter, reply):
        return Letter(JOIN, reply.values | {"classes": 9}) if letter.kind == JOIN and node == 101 else reply

    run = course(tmp_path, neighbourhood(tmp_path, change=wider), method="fedavg", rounds=3).run()
    assert run.state.events == ["node 101 cannot take part: it has 9 classes, the run 3", "resumed after round 2"]
    assert np.isnan(run.history.losses[-1]).any(1).tolist() == [False, True, False, False]


def test_sites_that_do_not_fit_together_cannot_begin(tmp_path):
    def odd(node, letter, reply):
        return Letter(JOIN, reply.values | {"pixels": "unit"}) if letter.kind == JOIN and node == 101 else reply

    with pytest.raises(ValueError, match="pixels is symmetric for client 0, but unit for client 1"):
        course(tmp_path, neighbourhood(tmp_path, change=odd), method="fedavg").run()


def test_the_folder_can_be_shown_and_selected_from(tmp_path):
    plan = {"model": "mlp", "method": "fedfew", "rounds": 2}
    network = neighbourhood(tmp_path)
    for here in network.sites.values():
        here.model = "mlp"
    Course(Plan(**(PLAN | plan | {"folder": str(tmp_path / "run")})), network, mlp, network.clock).run()
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--json"])
    assert shown.exit_code == 0, shown.output
    about = json.loads(shown.stdout)
    assert [client["client"] for client in about["clients"]] == [0, 1, 2, 3]
    assert about["data"]["train"] == FEDERATION.train.count.tolist()
    x, y = FEDERATION.test.of(0)
    np.savez(tmp_path / "mine.npz", x=x.numpy(), y=y.numpy())
    chosen = CliRunner().invoke(app, ["select", str(tmp_path / "run"), "--data", str(tmp_path / "mine.npz"), "--json"])
    assert json.loads(chosen.stdout)["samples"] == 6


def mlp(data):
    return lambda: models.build("mlp", tuple(data["shape"]), data["classes"])


@pytest.mark.parametrize("method", ["ditto", "apfl", "fedrep", "local", "fedamp", "fedmtl"])
def test_the_server_does_not_pretend_to_know_models_that_sites_keep(method, tmp_path):
    run = course(tmp_path, neighbourhood(tmp_path), method=method, rounds=1).run()
    with pytest.raises(ValueError, match="client 2 keeps a model of its own at its site"):
        run.model_of(2)


# -- what a site shares ------------------------------------------------------------------------------------------------------


def test_a_site_that_keeps_its_scores_to_itself(tmp_path):
    network = neighbourhood(tmp_path)
    network.sites[101] = site(tmp_path / "sites", 1, **{"share-scores": False})
    run = course(tmp_path, network, method="fedfew").run()
    assert np.isnan(run.history.served_accuracy[:, 1]).all()
    assert np.isnan(run.history.adapted_accuracy[:, 1]).all()
    assert not np.isnan(run.history.served_accuracy[:, [0, 2, 3]]).any()
    assert run.history.choice[-1][1] == -1
    told = [line["values"] for line in left_by(tmp_path, 1)]
    assert not any({"choice", "accuracy", "loss", "test_samples"} & values.keys() for values in told)
    folder = tmp_path / "sites" / "client-1" / run.state.sites["run"]
    about = json.loads((folder / "choice.json").read_text())
    oracle = simulated(method="fedfew")
    assert about["choice"] == int(oracle.choice[1])
    model = tiny()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    for name, t in oracle.model_of(1).state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], t, rtol=1e-5, atol=1e-5)


def left_by(folder, client):
    lines = (folder / "sites" / f"client-{client}" / "left.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_everything_that_leaves_a_site_is_written_down(tmp_path):
    sent = []

    def note(node, letter, reply):
        if node == 102:
            sent.append(reply)
        return reply

    course(tmp_path, neighbourhood(tmp_path, change=note), method="fedfew").run()
    lines = left_by(tmp_path, 2)
    assert [line["kind"] for line in lines] == [letter.kind for letter in sent]
    for line, letter in zip(lines, sent, strict=True):
        assert line["values"] == letter.values
        arrays = dict(named_leaves(letter.tree))
        assert [array["name"] for array in line["arrays"]] == list(arrays)
        for array in line["arrays"]:
            t = arrays[array["name"]]
            assert array["shape"] == list(t.shape)
            assert array["bytes"] == t.numpy().nbytes
            assert array["norm"] == pytest.approx(float(t.square().sum().sqrt()), rel=1e-5)
