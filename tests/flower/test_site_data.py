"""A site's configuration and data."""

import os
import sys

import numpy as np
import pytest
import torch

import fedfew
from fedfew.flower import site_data
from fedfew.flower.site_data import SiteConfig
from tests.flower.support import FEDERATION


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
        ({"client": 0}, "lacks data"),
        ({"data": "digits"}, "lacks client"),
        ({"client": -1, "data": "digits"}, "client must be a whole number ≥ 0, not -1"),
        ({"client": "one", "data": "digits"}, "client must be a whole number, not 'one'"),
        ({"client": 0, "data": "digits", "shares": 1}, "there is no setting of a site called 'shares'"),
        ({"client": 0, "data": "digits", "share_scores": "perhaps"}, "share-scores must be true or false"),
    ],
)
def test_errors_name_the_setting_and_what_would_be_right(node, message):
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
def test_errors_name_what_is_wrong_with_the_data(node, message):
    with pytest.raises(ValueError, match=message):
        site_data.load(read(**({"client": 0} | node)))


def test_an_npz_without_the_arrays(tmp_path):
    np.savez(tmp_path / "odd.npz", z=np.ones(3))
    with pytest.raises(ValueError, match=r"x and y \(or x_train"):
        site_data.load(read(client=0, data=str(tmp_path / "odd.npz")))


def test_a_gap_among_labels_or_class_names_is_refused_as_one(tmp_path):
    x, path = np.ones((12, 2), dtype=np.float32), tmp_path / "gaps.npz"
    np.savez(path, x=x, y=np.array([0, 1, np.nan] * 4))
    with pytest.raises(ValueError, match=r"gaps\.npz, row 3: the label is missing"):
        site_data.load(read(client=0, data=str(path)))
    np.savez(path, x=x, y=np.array(["3", "7"] * 6), class_names=np.array([3, 7, np.nan]))
    with pytest.raises(ValueError, match="class_names has a gap"):
        site_data.load(read(client=0, data=str(path)))
    np.savez(path, x=x, y=np.array(["3", "7"] * 6), class_names=np.array([7.0, 3.0]))
    assert site_data.load(read(client=0, data=str(path))).test.of(0)[1].tolist() == [0, 0, 0]


def test_a_simulated_node_takes_the_runs_data_but_a_real_one_does_not(monkeypatch):
    monkeypatch.setenv(site_data.STATE, "/somewhere")
    run = {"data": "digits", "partition": "iid", "clients": 8, "data-seed": 1, "rounds": 3}
    config = SiteConfig.read({"partition-id": 5, "num-partitions": 8}, run)
    assert (config.client, config.data, config.clients, config.partition, config.data_seed) == (5, "digits", 8, "iid", 1)
    assert str(config.state) == "/somewhere"
    with pytest.raises(ValueError, match="lacks client"):
        SiteConfig.read({}, run)
    own = SiteConfig.read({"client": 1, "data": "mine.npz", "state": "~/here"}, run)
    assert (own.data, own.clients, own.partition) == ("mine.npz", None, None)
    assert str(own.state) == os.path.expanduser("~/here")
