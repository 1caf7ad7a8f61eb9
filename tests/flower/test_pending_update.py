"""What a site refuses in masked aggregation: messages out of turn, of another session, or with invalid contents."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr")

from fedfew.flower.messages import MASK, REVEAL, SHARE_KEYS, RefusedError, SiteMessage
from fedfew.flower.pending_update import PendingUpdate, as_rows, as_tensor
from fedfew.flower.secure import ProtocolError
from fedfew.flower.secure.client import PublicKeys
from fedfew.flower.secure.server import MaskingServer
from fedfew.flower.site_data import SiteConfig
from fedfew.stack import Tree
from fedfew.util.files import DamagedFileError

UPDATE: Tree = {"w": torch.tensor([[1.0, -2.0], [0.5, 3.0]]), "steps": torch.tensor([4, 5])}


class ThreeSites:
    """Three sites that have begun, and what the server knows."""

    def __init__(self, folder, max_norm: float = 0.0) -> None:
        self.server = MaskingServer(6)
        self.sites = [PendingUpdate(folder / str(client)) for client in range(3)]
        for client, pending in enumerate(self.sites):
            keys = pending.begin(client, self.server.session.hex(), UPDATE, max_norm, 1.0)
            self.server.join(client, PublicKeys.loads(bytes.fromhex(keys)))
        self.server.close()

    def message(self, kind: str, tree: Tree | None = None, **values) -> SiteMessage:
        return SiteMessage(kind, {"session": self.server.session.hex()} | values, tree or {})

    def share_request(self, **changes) -> SiteMessage:
        rows = as_tensor([self.server.participants[client].dumps() for client in range(3)])
        return self.message(SHARE_KEYS, {"keys": rows}, **({"clients": [0, 1, 2], "threshold": 3} | changes))

    def share_keys(self) -> None:
        for client, pending in enumerate(self.sites):
            sealed = pending.handle(self.share_request())["sealed"]
            others = [other for other in range(3) if other != client]
            self.server.add_shares(client, dict(zip(others, as_rows(sealed), strict=True)))

    def weights(self, client: int, weights: list[float]) -> SiteMessage:
        sealed = self.server.forwarded_shares()[client]
        values = {"clients": sorted(sealed), "weights": weights, "models": len(weights), "clip": 1024.0}
        return self.message(MASK, {"sealed": as_tensor([sealed[other] for other in sorted(sealed)])}, **values)


def test_three_sites_add_up(tmp_path):
    """By name: steps come before w. 1 · update, 0.5 · update and 0 · update."""
    here = ThreeSites(tmp_path)
    here.share_keys()
    for client, weight in enumerate([1.0, 0.5, 0.0]):
        masked = here.sites[client].handle(here.weights(client, [weight, weight]))["masked"]
        here.server.upload(client, masked.numpy().view("uint64"))
    weights = torch.tensor([[1.0, 1.0], [0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    for client in range(3):
        shares = here.sites[client].handle(here.message(REVEAL, {"weights": weights}, clients=[0, 1, 2], round=1))["shares"]
        here.server.reveal(client, dict(zip(range(3), as_rows(shares), strict=True)))
    from fedfew.flower.secure.fixed_point import FixedPoint

    expected = [1.5 * x for x in (4, 5, 1.0, -2.0, 0.5, 3.0)]
    assert FixedPoint(1024.0, 3).decode(here.server.unmask()).tolist() == pytest.approx(expected, abs=1e-10)
    assert not any((tmp_path / str(client) / "masked").exists() for client in range(3))


def test_a_site_without_a_pending_update_refuses(tmp_path):
    with pytest.raises(RefusedError, match="no update is pending here"):
        PendingUpdate(tmp_path / "empty").handle(SiteMessage(SHARE_KEYS, {"session": "00"}))


def test_an_update_that_is_not_finite_is_not_sent(tmp_path):
    with pytest.raises(ValueError, match="the update is not finite"):
        PendingUpdate(tmp_path).begin(0, "ab" * 16, {"w": torch.tensor([[1.0, torch.nan]])}, 0.0, 1.0)
    assert list(tmp_path.iterdir()) == []


def test_another_session_is_refused_and_a_new_one_replaces_the_old(tmp_path):
    here = ThreeSites(tmp_path)
    here.sites[0].begin(0, "ab" * 16, UPDATE, 0.0, 1.0)
    with pytest.raises(RefusedError, match="of another session"):
        here.sites[0].handle(here.share_request())


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"clients": [0, 1, 1]}, RefusedError, "not a list of different clients"),
        ({"clients": [0, 1, -2]}, RefusedError, "not a list of different clients"),
        ({"clients": "012"}, RefusedError, "not a list of different clients"),
        ({"clients": [0, 1]}, ValueError, "zip"),
        ({"threshold": 1}, ProtocolError, "the threshold of 1 of 3 clients"),
        ({"threshold": "3"}, RefusedError, "threshold is not a whole number"),
    ],
)
def test_invalid_participants_is_refused_and_can_be_sent_again(tmp_path, changes, error, words):
    here = ThreeSites(tmp_path)
    with pytest.raises(error, match=words):
        here.sites[0].handle(here.share_request(**changes))
    assert here.sites[0].handle(here.share_request())["sealed"].shape == (2, 168)


def test_arrays_that_are_not_rows_of_bytes_are_refused(tmp_path):
    here = ThreeSites(tmp_path)
    for tree in ({}, {"keys": torch.zeros(3, 96)}, {"keys": torch.zeros(288, dtype=torch.uint8)}):
        with pytest.raises(RefusedError, match="keys are not rows of bytes"):
            here.sites[0].handle(here.message(SHARE_KEYS, tree, clients=[0, 1, 2], threshold=3))


def test_weights_that_are_not_rows_of_numbers_are_refused(tmp_path):
    here = ThreeSites(tmp_path)
    for tree in ({}, {"weights": torch.zeros(3, dtype=torch.float64)}, {"weights": torch.zeros(3, 2)}):
        with pytest.raises(RefusedError, match="weights are not rows of numbers"):
            here.sites[0].handle(here.message(REVEAL, tree, clients=[0, 1, 2], round=1))


@pytest.mark.parametrize("name", ["client", "update"])
def test_a_damaged_pending_update_is_not_sent(tmp_path, name):
    here = ThreeSites(tmp_path)
    here.share_keys()
    path = tmp_path / "0" / "masked" / name
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedFileError, match="it has changed since it was written"):
        here.sites[0].handle(here.weights(0, [0.5, 0.5]))


def test_clipped_values_are_logged_at_the_site(tmp_path, capsys):
    here = ThreeSites(tmp_path)
    here.share_keys()
    message = here.weights(0, [1.0, 1.0])
    message.values["clip"] = 2.5
    here.sites[0].handle(message)
    assert "3 of 6 numbers of this site's update are beyond ±2.5 and were clipped" in capsys.readouterr().out


@pytest.mark.parametrize("value", [0, 1.5, -1])
def test_most_weight_is_a_fraction(value):
    with pytest.raises(ValueError, match=r"most-weight must be in \(0, 1\], not"):
        SiteConfig.read({"client": 0, "data": "digits", "most-weight": value}, {})
