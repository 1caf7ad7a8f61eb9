"""The audit log: everything that leaves a site is in it."""

import os
import stat

import pytest

from fedfew.flower import audit_log
from fedfew.flower.messages import SiteMessage
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


def test_nobody_else_can_read_what_a_site_writes(tmp_path):
    """Logs, private state and the chosen model; also where an earlier version has left a log open to others."""
    (tmp_path / "sites" / "client-0").mkdir(parents=True, mode=0o755)
    (tmp_path / "sites" / "client-0" / "audit.jsonl").touch(0o644)
    before = os.umask(0o022)
    try:
        server_loop(tmp_path, fake_network(tmp_path), method="ditto", rounds=1).run()
    finally:
        os.umask(before)
    written = [path for path in (tmp_path / "sites").glob("client-*/**/*") if not path.name.startswith(".lock")]
    assert {"audit.jsonl", "own-000001", "model.safetensors", "choice.json"} <= {path.name for path in written}
    for path in [*written, *(tmp_path / "sites").glob("client-*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_log_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        audit_log.append(tmp_path, SiteMessage("join"))
    assert not (tmp_path / "elsewhere").exists()
