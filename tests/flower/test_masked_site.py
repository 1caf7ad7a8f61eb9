"""What a site refuses under masks: letters out of turn, of another session, or that make no sense."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr")

from fedfew.flower.masked_site import Aside, as_rows, as_tensor
from fedfew.flower.messages import MASK, REVEAL, SHARE, Letter, RefusedError
from fedfew.flower.secure import ProtocolError
from fedfew.flower.secure.client import PublicKeys
from fedfew.flower.secure.server import Adder
from fedfew.flower.site_data import SiteConfig
from fedfew.stack import Tree

UPDATE: Tree = {"w": torch.tensor([[1.0, -2.0], [0.5, 3.0]]), "steps": torch.tensor([4, 5])}


class Three:
    """Three sites that have begun, and what the server knows."""

    def __init__(self, folder, longest: float = 0.0) -> None:
        self.adder = Adder(6)
        self.sites = [Aside(folder / str(client)) for client in range(3)]
        for client, aside in enumerate(self.sites):
            keys = aside.begin(client, self.adder.session.hex(), UPDATE, longest)
            self.adder.join(client, PublicKeys.loads(bytes.fromhex(keys)))
        self.adder.close()

    def letter(self, kind: str, tree: Tree | None = None, **values) -> Letter:
        return Letter(kind, {"session": self.adder.session.hex()} | values, tree or {})

    def roster(self, **changes) -> Letter:
        rows = as_tensor([self.adder.roster[client].dumps() for client in range(3)])
        return self.letter(SHARE, {"keys": rows}, **({"clients": [0, 1, 2], "threshold": 3} | changes))

    def share(self) -> None:
        for client, aside in enumerate(self.sites):
            sealed = aside.answer(self.roster(), 1.0)["sealed"]
            others = [other for other in range(3) if other != client]
            self.adder.share(client, dict(zip(others, as_rows(sealed), strict=True)))

    def weights(self, client: int, weights: list[float]) -> Letter:
        sealed = self.adder.pass_on()[client]
        values = {"clients": sorted(sealed), "weights": weights, "models": len(weights), "clip": 1024.0}
        return self.letter(MASK, {"sealed": as_tensor([sealed[other] for other in sorted(sealed)])}, **values)


def test_three_sites_add_up(tmp_path):
    """By name: steps come before w. 1 · update, 0.5 · update and 0 · update."""
    here = Three(tmp_path)
    here.share()
    for client, weight in enumerate([1.0, 0.5, 0.0]):
        masked = here.sites[client].answer(here.weights(client, [weight, weight]), 1.0)["masked"]
        here.adder.upload(client, masked.numpy().view("uint64"))
    for client in range(3):
        shares = here.sites[client].answer(here.letter(REVEAL, clients=[0, 1, 2]), 1.0)["shares"]
        here.adder.reveal(client, dict(zip(range(3), as_rows(shares), strict=True)))
    from fedfew.flower.secure.fixed_point import Ring

    expected = [1.5 * x for x in (4, 5, 1.0, -2.0, 0.5, 3.0)]
    assert Ring(1024.0, 3).decode(here.adder.unmask()).tolist() == pytest.approx(expected, abs=1e-10)
    assert not any((tmp_path / str(client) / "masked").exists() for client in range(3))


def test_a_site_without_an_update_put_aside_refuses(tmp_path):
    with pytest.raises(RefusedError, match="nothing is put aside here"):
        Aside(tmp_path / "empty").answer(Letter(SHARE, {"session": "00"}), 1.0)


def test_an_update_that_is_not_finite_stays_at_home(tmp_path):
    with pytest.raises(ValueError, match="the update is not finite"):
        Aside(tmp_path).begin(0, "ab" * 16, {"w": torch.tensor([[1.0, torch.nan]])}, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_another_session_is_refused_and_a_new_one_replaces_the_old(tmp_path):
    here = Three(tmp_path)
    here.sites[0].begin(0, "ab" * 16, UPDATE, 0.0)
    with pytest.raises(RefusedError, match="another session's update"):
        here.sites[0].answer(here.roster(), 1.0)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"clients": [0, 1, 1]}, RefusedError, "not a list of different clients"),
        ({"clients": [0, 1, -2]}, RefusedError, "not a list of different clients"),
        ({"clients": "012"}, RefusedError, "not a list of different clients"),
        ({"clients": [0, 1]}, ValueError, "zip"),
        ({"threshold": 1}, ProtocolError, "a threshold of 1 of 3 clients"),
        ({"threshold": "3"}, RefusedError, "threshold is not a whole number"),
    ],
)
def test_a_roster_that_makes_no_sense_is_refused_and_can_be_sent_again(tmp_path, changes, error, words):
    here = Three(tmp_path)
    with pytest.raises(error, match=words):
        here.sites[0].answer(here.roster(**changes), 1.0)
    assert here.sites[0].answer(here.roster(), 1.0)["sealed"].shape == (2, 160)


def test_rows_that_are_no_bytes_are_refused(tmp_path):
    here = Three(tmp_path)
    for tree in ({}, {"keys": torch.zeros(3, 96)}, {"keys": torch.zeros(288, dtype=torch.uint8)}):
        with pytest.raises(RefusedError, match="keys are not rows of bytes"):
            here.sites[0].answer(here.letter(SHARE, tree, clients=[0, 1, 2], threshold=3), 1.0)


@pytest.mark.parametrize(("weights", "most"), [([1.1, 0.0], 1.0), ([-0.1, 0.0], 1.0), ([0.6, 0.1], 0.5)])
def test_weights_beyond_what_a_site_allows_are_refused(tmp_path, weights, most):
    here = Three(tmp_path)
    here.share()
    with pytest.raises(RefusedError, match=f"a weight of this site is not from 0 to {most:g}"):
        here.sites[0].answer(here.weights(0, weights), most)


def test_what_is_cut_is_said_at_home(tmp_path, capsys):
    here = Three(tmp_path)
    here.share()
    letter = here.weights(0, [1.0, 1.0])
    letter.values["clip"] = 2.5
    here.sites[0].answer(letter, 1.0)
    assert "3 of 6 numbers of this site's update are beyond ±2.5 and were cut" in capsys.readouterr().out


@pytest.mark.parametrize("value", [0, 1.5, -1])
def test_most_weight_is_a_share(value):
    with pytest.raises(ValueError, match=r"most-weight must be in \(0, 1\], not"):
        SiteConfig.read({"client": 0, "data": "digits", "most-weight": value}, {})
