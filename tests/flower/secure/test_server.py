"""What the server refuses in masked aggregation."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")
from fedfew.flower.secure import ProtocolError, shamir
from fedfew.flower.secure.client import MaskingClient, PublicKeys
from fedfew.flower.secure.server import MaskingServer
from tests.flower.secure.rounds import Round, after, equal, random_values


def test_shares_of_another_polynomial_are_noticed() -> None:
    round = after("reveal")
    round.server._revealed[0] = dict(round.server._revealed[0]) | {1: bytes(shamir.SHARE_BYTES)}
    with pytest.raises(ProtocolError, match="the shares of client 1's secret do not fit together: nothing is unmasked"):
        round.server.unmask()


def test_false_shares_are_noticed_before_anything_is_unmasked() -> None:
    for gone, words in (({}, "own mask are wrong|do not fit"), ({3: "mask"}, "mask key are wrong|do not fit")):
        round = Round(random_values(4, 5), gone)
        round.begin()
        round.share_keys()
        round.mask()
        round.reveal()
        liar = dict(round.server._revealed[0])
        victim = 3 if gone else 1
        liar[victim] = (int.from_bytes(liar[victim]) ^ 1).to_bytes(shamir.SHARE_BYTES)
        round.server._revealed[0] = liar
        with pytest.raises(ProtocolError, match=words):
            round.server.unmask()


def test_the_server_refuses_what_does_not_fit() -> None:
    round = after("mask")
    server, shares = round.server, round.client(0).reveal(equal({0, 1, 2, 3}))
    with pytest.raises(ProtocolError, match="client 0 has joined already"):
        server.join(0, server.participants[0])
    fresh = MaskingClient.begin(9, server.session).public
    for copied in (replace(fresh, mask=server.participants[0].channel), replace(fresh, channel=fresh.mask)):
        with pytest.raises(ProtocolError, match="its keys are not new and different"):
            server.join(9, copied)
    with pytest.raises(ProtocolError, match="a public key is not a valid X25519 key"):
        server.join(9, replace(fresh, mask=bytes(32)))
    with pytest.raises(ProtocolError, match="are not for all others"):
        server.add_shares(0, {1: b""})
    with pytest.raises(ProtocolError, match="wrong size"):
        server.add_shares(0, dict.fromkeys((1, 2, 3), b""))
    with pytest.raises(ProtocolError, match="client 0 has uploaded already"):
        server.upload(0, round.uploads[0])
    server.uploaded.discard(0)
    with pytest.raises(ProtocolError, match=r"uploaded uint64 of shape \[4\], not \[5\] of uint64"):
        server.upload(0, round.uploads[0][:4])
    with pytest.raises(ProtocolError, match="client 0 has revealed already, or has not uploaded"):
        server.reveal(0, shares)
    server.uploaded.add(0)
    with pytest.raises(ProtocolError, match="has not revealed a share for each client"):
        server.reveal(0, {1: shares[1]})
    with pytest.raises(ProtocolError, match="clients may still join"):
        MaskingServer(5).forwarded_shares()
    with pytest.raises(ProtocolError, match="public keys have 96 bytes, not 3"):
        PublicKeys.loads(b"abc")
