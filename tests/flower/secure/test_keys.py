"""The primitives: masks, shares, keys and sealed messages."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("cryptography")

from fedfew.flower.secure import ProtocolError, keys

SESSION = b"s" * 16


def test_two_clients_agree_and_a_third_or_another_session_does_not() -> None:
    private = [keys.fresh() for _ in range(3)]
    seeds = {(i, j): keys.pair_seed(private[i], keys.public(private[j]), SESSION) for i, j in itertools.permutations(range(3), 2)}
    assert all(seeds[i, j] == seeds[j, i] for i, j in seeds)
    assert len(set(seeds.values())) == 3
    assert keys.pair_seed(private[0], keys.public(private[1]), b"t" * 16) != seeds[0, 1]


def test_a_sealed_text_opens_for_its_receiver_alone_and_unchanged_alone() -> None:
    ann, bob, eve = (keys.fresh() for _ in range(3))
    sealed = keys.seal(ann, keys.public(bob), SESSION, 1, 2, b"share")
    assert keys.unseal(bob, keys.public(ann), SESSION, 1, 2, sealed) == b"share"
    assert keys.seal(ann, keys.public(bob), SESSION, 1, 2, b"share") != sealed
    for private, session, sender, receiver in [
        (eve, SESSION, 1, 2),
        (bob, b"t" * 16, 1, 2),
        (bob, SESSION, 2, 1),
        (bob, SESSION, 1, 3),
    ]:
        with pytest.raises(ProtocolError, match="damaged"):
            keys.unseal(private, keys.public(ann), session, sender, receiver, sealed)
    for position in (0, 12, len(sealed) - 1):  # nonce, text, tag
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(ProtocolError, match="the encrypted shares of client 1 are damaged"):
            keys.unseal(bob, keys.public(ann), SESSION, 1, 2, bytes(changed))
    with pytest.raises(ProtocolError, match="damaged"):
        keys.unseal(bob, keys.public(ann), SESSION, 1, 2, b"")


@pytest.mark.parametrize("peer", [bytes(32), b"short"])
def test_a_public_key_that_would_make_everybody_agree_is_refused(peer: bytes) -> None:
    with pytest.raises(ProtocolError, match="a public key is not a valid X25519 key"):
        keys.pair_seed(keys.fresh(), peer, SESSION)


def test_a_commitment_fits_its_seed_and_session_only() -> None:
    seed = keys.fresh()
    assert keys.commitment(seed, SESSION) == keys.commitment(seed, SESSION)
    assert keys.commitment(seed, SESSION) != keys.commitment(seed, b"t" * 16) != keys.commitment(keys.fresh(), SESSION)
