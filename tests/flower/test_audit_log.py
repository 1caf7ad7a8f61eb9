"""The audit log: everything that leaves a site is in it."""

import pytest

from fedfew.stack import named_leaves
from tests.flower.support import audit_log_of, fake_network, server_loop


def test_everything_that_leaves_a_site_is_logged(tmp_path):
    sent = []

    def note(node, message, reply):
        if node == 102:
            sent.append(reply)
        return reply

    server_loop(tmp_path, fake_network(tmp_path, change=note), method="fedfew").run()
    lines = audit_log_of(tmp_path, 2)
    assert [line["kind"] for line in lines] == [message.kind for message in sent]
    for line, message in zip(lines, sent, strict=True):
        assert line["values"] == message.values
        arrays = dict(named_leaves(message.tree))
        assert [array["name"] for array in line["arrays"]] == list(arrays)
        for array in line["arrays"]:
            t = arrays[array["name"]]
            assert array["shape"] == list(t.shape)
            assert array["bytes"] == t.numpy().nbytes
            assert array["norm"] == pytest.approx(float(t.square().sum().sqrt()), rel=1e-5)
