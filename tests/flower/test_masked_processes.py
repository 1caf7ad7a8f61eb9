"""A run under masks on Flower itself, where each step comes to a site as a message of its own."""

import pytest
import torch

pytest.importorskip("flwr")

import fedfew
from fedfew.stack import named_leaves
from tests.flower.support import APP, deployment, tiny
from tests.flower.test_masked_round import QUANTISED

pytestmark = pytest.mark.deploy


def test_a_drop_out_between_the_phases_leaves_what_it_leaves_in_a_plain_run(tmp_path):
    """Client 3 trains in round 2 but uploads nothing; in the plain run it fails in training."""
    runs = {}
    with deployment(tmp_path, simulation=True) as here:
        for aggregation, fault in (("masked", "3:2:drop"), ("plain", "3:2:raise")):
            folder = tmp_path / aggregation
            config = {"aggregation": aggregation, "test.faults": fault, "folder": str(folder), "method": "fedfew:mu=0.1"}
            output = here.run(APP, config, nodes=4)
            assert folder.is_dir(), output[-3000:]
            runs[aggregation] = fedfew.load(folder, tiny)
    masked, plain = runs["masked"].state, runs["plain"].state
    assert masked.round == plain.round == 2
    assert [event for event in masked.events if "left out" in event] == [
        "round 2: client 3 is left out: the site failed: request"
    ]
    for (name, a), (_, b) in zip(named_leaves(masked.server), named_leaves(plain.server), strict=True):
        torch.testing.assert_close(a, b, rtol=QUANTISED, atol=QUANTISED, msg=name)
        assert not torch.equal(a, torch.zeros_like(a))
