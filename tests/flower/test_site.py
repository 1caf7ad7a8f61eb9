"""A site by itself: its data, its configuration, its state on disk, and what it says when it fails."""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

import fedfew
from fedfew.flower import client, records, site_data
from fedfew.flower.client_state import Generations
from fedfew.flower.messages import FAILED, JOIN, TRAIN, Letter
from fedfew.flower.plan import Plan
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import WORDS
from fedfew.stack import named_leaves
from tests.flower.small import FEDERATION, PLAN, site, tiny

# -- configuration and data --------------------------------------------------------------------------------------------------


def read(**node):
    return SiteConfig.read({key.replace("_", "-"): value for key, value in node.items()}, {})


def test_data_by_name():
    one = site_data.load(read(client=2, data="digits", clients=4, partition="iid", data_seed=3))
    all_four = fedfew.data.load("digits", clients=4, partition="iid", seed=3)
    assert one.ids.tolist() == [2]
    assert torch.equal(one.train.of(0)[0], all_four.train.of(2)[0])
    assert torch.equal(one.test.of(0)[1], all_four.test.of(2)[1])


def test_data_by_path(tmp_path):
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
    np.savez(tmp_path / "whole.npz", x=x, y=y)
    one = site_data.load(read(client=5, data=str(tmp_path / "whole.npz"), classes=4))
    assert (one.ids.tolist(), one.classes, one.name) == ([5], 4, "arrays")  # a file's name does not leave the site
    assert one.test.of(0)[1].tolist() == y[[3, 7, 11]].tolist()
    assert len(one.train.of(0)[1]) == 9
    np.savez(tmp_path / "cut.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    cut = site_data.load(read(client=0, data=str(tmp_path / "cut.npz")))
    assert (int(cut.train.count), int(cut.test.count)) == (12, 2)
    prepared = fedfew.data.write_prepared(FEDERATION, tmp_path / "all.fed")
    third = site_data.load(read(client=2, data=str(prepared)))
    assert third.ids.tolist() == [2]
    assert torch.equal(third.train.of(0)[0], FEDERATION.train.of(2)[0])
    fedfew.data.write_prepared(FEDERATION.take([1]), tmp_path / "mine.fed")
    mine = site_data.load(
        read(client=2, data=str(tmp_path / "mine.fed"))
    )  # a file of one client is the site's, whatever its number
    assert torch.equal(mine.train.of(0)[0], FEDERATION.train.of(1)[0])


def test_data_by_factory(tmp_path, monkeypatch):
    (tmp_path / "mine_here.py").write_text(
        "import fedfew\nimport numpy as np\n"
        "def load(config):\n"
        "    x = np.full((4, 2), config['client'], dtype=np.float32)\n"
        "    return fedfew.Federation.from_arrays([(x, [0, 1, 0, 1])], [(x, [0, 1, 0, 1])])\n"
        "def wrong(config):\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    one = site_data.load(read(client=3, data="mine_here:load"))
    assert one.train.of(0)[0].unique().tolist() == [3.0]
    with pytest.raises(ValueError, match=r"mine_here:wrong must return a fedfew\.Federation, not int"):
        site_data.load(read(client=3, data="mine_here:wrong"))
    with pytest.raises(ValueError, match="mine_here has no function absent"):
        site_data.load(read(client=3, data="mine_here:absent"))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"client": 0}, "says nothing of data"),
        ({"data": "digits"}, "says nothing of client"),
        ({"client": -1, "data": "digits"}, "client must be a whole number ≥ 0, not -1"),
        ({"client": "one", "data": "digits"}, "client must be a whole number, not 'one'"),
        ({"client": 0, "data": "digits", "shares": 1}, "there is no setting of a site called 'shares'"),
        ({"client": 0, "data": "digits", "share_scores": "perhaps"}, "share-scores must be true or false"),
    ],
)
def test_a_wrong_configuration_is_said_in_words(node, message):
    with pytest.raises(ValueError, match=message):
        read(**node)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"data": "absent.npz"}, "there is no file absent.npz"),
        ({"data": "dogits"}, "neither a data set's name"),
        ({"data": "digits", "clients": 3, "client": 3}, "client is 3, but digits has 3 clients, 0 … 2"),
    ],
)
def test_wrong_data_is_said_in_words(node, message):
    with pytest.raises(ValueError, match=message):
        site_data.load(read(**({"client": 0} | node)))


def test_an_npz_without_the_arrays(tmp_path):
    np.savez(tmp_path / "odd.npz", z=np.ones(3))
    with pytest.raises(ValueError, match=r"x and y \(or x_train"):
        site_data.load(read(client=0, data=str(tmp_path / "odd.npz")))


def test_a_simulated_node_takes_the_runs_data_but_a_real_one_does_not(monkeypatch):
    monkeypatch.setenv(site_data.STATE, "/somewhere")
    run = {"data": "digits", "partition": "iid", "clients": 8, "data-seed": 1, "rounds": 3}
    config = SiteConfig.read({"partition-id": 5, "num-partitions": 8}, run)
    assert (config.client, config.data, config.clients, config.partition, config.data_seed) == (5, "digits", 8, "iid", 1)
    assert str(config.state) == "/somewhere"
    with pytest.raises(ValueError, match="says nothing of client"):
        SiteConfig.read({}, run)
    own = SiteConfig.read({"client": 1, "data": "mine.npz", "state": "~/here"}, run)
    assert (own.data, own.clients, own.partition) == ("mine.npz", None, None)
    assert str(own.state) == os.path.expanduser("~/here")


# -- its state on disk -------------------------------------------------------------------------------------------------------


def state(value: float):
    return {"own": {"z": torch.full((2,), value), "a": torch.tensor([3])}}


def test_generations_are_kept_until_the_server_has_no_use_for_them(tmp_path):
    generations = Generations(tmp_path / "client")
    assert generations.rounds() == []
    assert generations.read(1) is None
    for round in (1, 2, 5, 6):
        generations.write(round, state(round), keep_from=2)
    assert generations.rounds() == [2, 5, 6]
    kept = generations.read(5)
    assert [name for name, _ in named_leaves(kept)] == ["own/z", "own/a"]  # in the order they were written
    assert kept["own"]["z"].tolist() == [5.0, 5.0]
    generations.write(5, state(7.0), keep_from=5)
    assert generations.rounds() == [5, 6]
    assert generations.read(5)["own"]["z"].tolist() == [7.0, 7.0]


def test_a_damaged_generation_is_none(tmp_path):
    generations = Generations(tmp_path)
    generations.write(1, state(1.0), keep_from=0)
    (tmp_path / "own-000001.safetensors").write_bytes(b"\x80\x04nonsense")
    assert generations.read(1) is None
    (tmp_path / ".partial-1-x").write_bytes(b"half")
    generations.write(2, state(2.0), keep_from=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own-000001.safetensors", "own-000002.safetensors"]


# -- failures ----------------------------------------------------------------------------------------------------------------


def asked(letter: Letter, tmp_path, model=tiny, **node):
    """The client app's answer to a letter."""
    message = SimpleNamespace(content=records.to_records(letter))
    context = SimpleNamespace(
        node_config={"client": 1, "data": "tests.flower.small:make", "state": str(tmp_path)} | node, run_config={"model": "mlp"}
    )
    return client.answered(message, context, model)


def training(**changes) -> Letter:
    data = {"shape": [5], "classes": 3, "vocabulary": None}
    settings = json.dumps(Plan(**(PLAN | {"method": "fedavg"})).for_sites() | data)
    values = {"run": "0" * 32, "round": 1, "last": 0, "keep": 0, "share": 0.5, "scored": False, "settings": settings} | changes
    return Letter(TRAIN, values, {name: t[None] for name, t in tiny().state_dict().items()})


def test_an_answer_through_the_client_app(tmp_path):
    assert asked(Letter(JOIN), tmp_path).values["samples"] == 40
    assert asked(training(), tmp_path).kind == TRAIN
    assert asked(Letter(JOIN), tmp_path, model=None).values["client"] == 1


def secret():
    raise RuntimeError("patient 4711")


def leaving():
    raise SystemExit("patient 4711")


@pytest.mark.parametrize(
    ("letter", "changes", "word"),
    [
        (Letter(JOIN), {"client": "patient 4711"}, "configuration"),
        (Letter(JOIN), {"data": "/patient 4711.npz"}, "data"),
        (Letter("patient 4711"), {}, "request"),
        (training(settings='{"patient": 4711}'), {}, "settings"),
        (training(run="../../patient-4711"), {}, "settings"),
        (training(share=float("nan")), {}, "training"),
        (training(), {"model": secret}, "settings"),
        (training(), {"model": leaving}, "request"),
    ],
)
def test_one_word_of_a_failure_leaves_the_site(letter, changes, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reply = asked(letter, tmp_path / "state", **changes)
    assert (reply.kind, reply.values, reply.tree) == (FAILED, {"why": word}, {})
    assert word in WORDS
    logs = [path for path in tmp_path.rglob("trouble.log") if "Error" in path.read_text() or "SystemExit" in path.read_text()]
    assert len(logs) == 1
    assert json.loads((logs[0].parent / "left.jsonl").read_text())["values"] == {"why": word}


def test_a_message_that_is_no_letter(tmp_path):
    message = SimpleNamespace(content=RecordDict())
    context = SimpleNamespace(node_config={"client": 1, "data": "tests.flower.small:make", "state": str(tmp_path)}, run_config={})
    assert client.answered(message, context, tiny).values == {"why": "request"}


def test_a_state_that_cannot_be_written_fails_the_round(tmp_path):
    (tmp_path / "client-1").write_text("a file where a folder should be")
    assert asked(training(), tmp_path).values == {"why": "state"}


def test_a_round_that_is_asked_for_twice_gives_the_same_answer(tmp_path):
    here = site(tmp_path, 1)
    letter = training(settings=json.dumps(json.loads(training().values["settings"]) | {"method": {"name": "ditto"}}))
    first, second = here.answer(letter), here.answer(letter)
    assert first.values == second.values
    for (_, a), (_, b) in zip(named_leaves(first.tree), named_leaves(second.tree), strict=True):
        assert torch.equal(a, b)
