"""A real SuperLink with four real SuperNodes on loopback: failures, then parity, on the same nodes."""

import json

import numpy as np
import pytest
import torch

import fedfew
from fedfew.flower.messages import FAILED, SiteMessage
from fedfew.stack import named_leaves, tree_map
from tests.flower.support import APP, deployment, fake_network, node_config, same_as_simulated, server_loop, simulated, site, tiny
from tests.methods.tiers import BETWEEN_NODES

pytestmark = pytest.mark.deploy
SECRET = "patient 4711"  # in the text of an error at a site: testapp/client.py
FAULTS = "0:1:raise,1:1:nan,0:2:shape,0:3:huge,0:4:hang,2:4:hang"
WRONG = {"nan": lambda t: t * float("nan"), "shape": lambda t: t[..., None], "huge": lambda t: t * 1e6}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with deployment(tmp_path_factory.mktemp("deployment")) as here:
        for node in [here.node(i, node_config(i)) for i in range(3)]:  # the fourth is late
            here.wait_for(lambda node=node: "SuperNode ID" in node.text(), node.name, alive=(node.name,))
        yield here


def test_sites_that_fail_die_or_come_late(here, tmp_path):
    """Round 1: client 0 raises, 1 sends NaN. 2: wrong shapes. 3: a huge update. 4: 0 and 2 hang, 2 is killed and restarted."""
    folder = here.folder / "faults"
    settings = {"rounds": 5, "quorum": 0.25, "deadline": 75.0, "gather": 30.0, "folder": str(folder), "test.score": False}
    program = here.start_run(APP, settings | {"test.faults": FAULTS})
    here.wait_for(lambda: "round 1 of 5" in program.text(), "round 1", 600)
    here.node(3, node_config(3))
    here.wait_for((here.folder / "sites" / "client-2" / "hanging").exists, "round 4", 600)
    here.kill("node-2")
    here.node("2-again", node_config(2))
    here.wait_for(lambda: not program.running(), "the end", 600)
    run = fedfew.load(folder, tiny)
    answered = ~np.isnan(run.history.losses).any(2)
    late = answered[:, 3].tolist()  # when it joined is a matter of seconds
    assert late in [[False] * k + [True] * (5 - k) for k in (1, 2, 3, 4)], program.text()
    assert answered[:, 0].tolist() == [False] * 5
    assert answered[:, 1].tolist() == [False, True, True, True, True]
    assert answered[:, 2].tolist() == [True, True, True, False, True]
    about_2 = [event for event in run.state.events if "client 2" in event]
    late_or_gone = {"no reply within the deadline", "the node is gone"}  # Flower needs a minute to notice
    assert about_2[1].removeprefix("round 4: client 2 is left out: ") in late_or_gone
    assert [about_2[0], *about_2[2:]] == [
        "a second node joined as client 2: it waits until the first is gone",
        "client 2 is back as another node",
    ]
    others = [event for event in run.state.events if event not in about_2]
    expected = [
        "started without client 3",
        "round 1: client 0 is left out: the site failed: training",
        "round 1: client 1 is left out: 0.weight is not finite",
        "round 2: client 0 is left out: 0.weight has shape [1, 6, 5, 1] of torch.float32, not [1, 6, 5] of torch.float32",
        "round 3: client 0 is left out: its update is",
        "round 4: client 0 is left out: no reply within the deadline",
        "round 5: client 0 is not asked: it has not answered an earlier message yet",
        "round 5: not there to choose and save a model: client 0",
    ]
    assert len(others) == len(expected), others
    for event, beginning in zip(others, expected, strict=True):
        assert event.startswith(beginning)
        assert event in program.text()
    same_as_in_this_process(run, late.index(True), tmp_path)

    home = here.folder / "sites" / "client-0"
    assert SECRET in (home / "errors.log").read_text()
    for log in (here.superlink.text(), program.text(), (folder / "round-000005" / "state.json").read_text()):
        assert SECRET not in log
    left = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
    assert [line["values"] for line in left if line["kind"] == "failed"] == [{"error": "training"}]


def same_as_in_this_process(run, late, folder):
    """The same faults without a network: the weights are over the same clients, so the parameters are the same."""
    planned = {(int(c), int(r)): what for c, r, what in (fault.split(":") for fault in FAULTS.split(","))}
    planned[2, 4] = "killed"
    network = fake_network(folder, clients=3)

    def fail(node, message, reply):
        if message.kind != "train":
            return reply
        if message.values["round"] == late:
            network.sites.setdefault(103, site(folder / "sites", 3))
        fault = planned.get((node - 100, message.values["round"]), "")
        if fault in WRONG:
            reply.tree = tree_map(WRONG[fault], reply.tree)
        if fault in ("raise", "killed"):
            return SiteMessage(FAILED, {"error": "training"})
        return None if fault == "hang" else reply

    network.change = fail
    oracle = server_loop(folder, network, method="fedavg", rounds=5, quorum=0.25, score_every=5).run()
    for (name, a), (_, b) in zip(named_leaves(run.state.server), named_leaves(oracle.state.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=name)


def test_methods_between_real_nodes_end_as_in_the_simulator(here):
    here.kill("node-0")  # it hangs since the last test
    here.node("0-again", node_config(0))
    runs, methods = here.folder / "methods", BETWEEN_NODES
    settings = {"test.methods": ";".join(methods), "test.score": False, "score-every": 2, "folder": str(runs)}
    output = here.run(APP, settings, seconds=900)
    for number, method in enumerate(methods):
        assert (runs / str(number)).is_dir(), output[-3000:]
        run = fedfew.load(runs / str(number), tiny)
        oracle = simulated(method=method, rounds=2, score_every=2)
        for name in ("served_accuracy", "served_loss", "choice"):  # not asked for here
            run.history._columns[name] = oracle.history._columns[name]
        same_as_simulated(run, oracle, here.folder / "sites")
